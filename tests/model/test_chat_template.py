"""Chat templates in the shapes that published models have render as transformers renders them, in the limited child."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from desk_rag.errors import ModelError
from desk_rag.model import chat_template
from desk_rag.model.prompt import load_prompt
from tests.model.test_prompt import model_dir

TURNS = [{"role": "system", "content": "Be brief: <é> & 'so'."}, {"role": "user", "content": "  Why?\nNow.  "}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}

TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}",
    "thinking": (
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content + '\\n' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n"
        "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
        "        {{- '<think>\\n\\n</think>\\n\\n' }}\n    {%- endif %}\n{%- endif %}"
    ),
    "dated": (
        "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = 'none' %}{%- endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
        "{%- set messages = messages[1:] %}{%- endif %}{{- 'Today: ' + date_string + '\\n' + system }}\n"
        "{%- for m in messages %}{{- '<|h|>' + m['role'] + '\\n\\n' + m['content'] | trim + '<|e|>' }}{%- endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(first=true, count=0) %}{% for m in messages %}{% if ns.first %}{{ bos_token }}"
        "{% set ns.first = false %}{% endif %}{% set ns.count = ns.count + 1 %}{{ ns.count }}{{ m.content }}"
        "{% endfor %}"
    ),
    "tools": (
        "{% if tools is defined and tools is not none %}TOOLS{% endif %}{% for m in messages %}{% if loop.last %}"
        "[INST] {{ m.content }} [/INST]{% else %}{{ m | tojson }}{% continue %}{% endif %}{% endfor %}{{ eos_token }}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{{ m.content.strip().split('?')[0] }}{% endgeneration %}{% endfor %}"
        "{{ undefined_token }}{% macro line(t) %}{{ t | upper }}{% endmacro %}{{ line('end') }}{{ dict(a=1) }}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_as_transformers_renders_it(name: str) -> None:
    options = {"enable_thinking": False, "date_string": "1 January 2026", **TOKENS}
    expected, _ = render_jinja_template(
        conversations=[TURNS], chat_template=TEMPLATES[name], add_generation_prompt=True, **options
    )
    assert chat_template.render(Path("somewhere"), TEMPLATES[name], TOKENS, [TURNS]) == expected[0]


def test_todays_date_is_the_same_every_day() -> None:
    template = "{{ strftime_now('%d %b %Y') }}"
    assert chat_template.render(Path("somewhere"), template, {}, [TURNS]) == "01 Jan 2026"


def test_a_refusal_names_the_directory_and_what_the_template_says() -> None:
    template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(ModelError, match="somewhere fails: TemplateError Conversation roles must alternate"):
        chat_template.render(Path("somewhere"), template, {}, [TURNS, TURNS[1:]])


def test_a_folder_with_modules_of_the_same_names_is_not_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    (tmp_path / "jinja2.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert chat_template.render(Path("somewhere"), "{{ messages|length }}", {}, [TURNS]) == "2"


@pytest.mark.parametrize("shape", ["file", "list", "special-token-objects"])
def test_templates_are_found_where_models_keep_them(tmp_path: Path, shape: str) -> None:
    template = "{{ bos_token }}" + TEMPLATES["chatml"]
    place = model_dir(tmp_path, template)
    described = json.loads((place / "tokenizer_config.json").read_text())
    if shape == "file":
        del described["chat_template"]
        (place / "chat_template.jinja").write_text(template)
    elif shape == "list":
        described["chat_template"] = [
            {"name": "tool_use", "template": "wrong"},
            {"name": "default", "template": template},
        ]
    else:
        del described["bos_token"]
        (place / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|endoftext|>"}}))
    (place / "tokenizer_config.json").write_text(json.dumps(described))
    assert load_prompt(place).parts.head.startswith("<|endoftext|><|im_start|>system\n")

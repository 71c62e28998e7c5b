"""The compiled kernels compute what torch computes, and everything goes on without them."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from desk_rag.config import ModelSettings
from desk_rag.kv.cache import SlabCache
from desk_rag.kv.forward.runner import ModelPass, ModelRunner
from desk_rag.kv.prefill import prefill_chunk, prefill_prefix
from desk_rag.kv.rope import build_tables
from desk_rag.model.embedded import compiled_layers, kernels, threads
from desk_rag.model.embedded.compiled_layers import CompiledLayers
from desk_rag.model.embedded.compiled_linear import CompiledLinear
from desk_rag.model.language_model import LanguageModel
from desk_rag.model.loading import load_model

needs_kernels = pytest.mark.skipif(kernels.library() is None, reason="no kernels for this CPU, or no C compiler")
needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or kernels.compiler() is None, reason="no C compiler"
)
ROWS = (1, 2, 3, 4, 16, 17, 31, 33, 130)


@pytest.fixture(scope="module")
def reader() -> LanguageModel:
    """The embedded reader, as no other file of tests has used it."""
    return load_model(ModelSettings(device="cpu"))


@pytest.fixture
def anew() -> Iterator[None]:
    """Have kernels looked for again, in this test and behind it."""
    kernels._loaded.cache_clear()
    yield
    kernels._loaded.cache_clear()


SETS = {
    "AMX": (*kernels._AVX512, *kernels._TILES),
    "AVX-512": kernels._AVX512,
    "AVX-VNNI": (*kernels._AVX2, "avx_vnni"),
    "AVX2": kernels._AVX2,
}


def use_kernels_for(kind: str, folders: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> None:
    """Have kernels compiled for this kind of CPU, once in a run, or skip the test where this CPU is of another."""
    if SETS[kind] not in kernels._feature_sets():
        pytest.skip(f"this CPU has no {kind}")
    patch.setattr(kernels, "_feature_sets", lambda: (SETS[kind],))
    patch.setenv("DESK_RAG_KERNELS", str(folders.getbasetemp() / f"kernels for {kind}"))


@pytest.fixture(params=SETS)
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> ctypes.CDLL:
    """Kernels for every kind of CPU that this one is, too."""
    use_kernels_for(request.param, tmp_path_factory, monkeypatch)
    compiled = kernels.library()
    assert compiled is not None
    return compiled


@pytest.fixture
def linear(library: ctypes.CDLL) -> CompiledLinear:
    """A matrix [80, 576] with a bias."""
    torch.manual_seed(2)
    codes = torch.randint(-127, 128, (80, 576), dtype=torch.int8)
    return CompiledLinear(library, codes, torch.rand(80).half() / 100, torch.randn(80))


@needs_kernels
def test_products_are_those_of_the_weights_and_a_rows_is_the_same_among_others(linear: CompiledLinear) -> None:
    weight, bias = linear.weight.double(), linear.bias
    assert bias is not None
    for count in ROWS:
        x = torch.randn(count, 576) * torch.logspace(-3, 3, count)[:, None]
        product = linear(x[None])[0]
        error = (product - torch.nn.functional.linear(x.double(), weight, bias.double())).abs()
        largest = x.abs().amax(-1, keepdim=True) * weight.abs().sum(1) + bias.abs()
        assert (error / largest).max() < 2**-15
        assert all(torch.equal(linear(row[None])[0], its_own) for row, its_own in zip(x, product, strict=True))
    assert torch.equal(linear(torch.zeros(3, 576)), bias.expand(3, 80))


@needs_kernels
def test_codes_at_their_ends_do_not_overflow(library: ctypes.CDLL) -> None:
    codes = torch.full((16, 1536), -127, dtype=torch.int8)
    codes[8:] = 127
    linear = CompiledLinear(library, codes, torch.ones(16))
    for rows in (1, 5, 50):
        x = torch.full((rows, 1536), -1.0)
        torch.testing.assert_close(linear(x), x @ codes.float().mT, rtol=1e-5, atol=1e-2)


@needs_kernels
def test_kernels_whose_products_are_wrong_are_not_used(
    tmp_path: Path, anew: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", kernels.__name__)
    for file in (*kernels._HEADERS, *kernels._SOURCES):
        text = file.read_text()
        (tmp_path / file.name).write_text(text.replace("load(m->scales + column)", "1.001f * load(m->scales + column)"))
    monkeypatch.setattr(kernels, "_SOURCES", tuple(tmp_path / file.name for file in kernels._SOURCES))
    monkeypatch.setattr(kernels, "_HEADERS", tuple(tmp_path / file.name for file in kernels._HEADERS))
    best = kernels._feature_sets()[0]
    monkeypatch.setattr(kernels, "_feature_sets", lambda: (best,))
    monkeypatch.setenv("DESK_RAG_KERNELS", str(tmp_path / "compiled"))
    assert kernels.library() is None
    assert "their products are wrong" in caplog.text


def passes(model: LanguageModel) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits behind every token of a prompt that is read in parts, and the slabs."""
    ids, cache = torch.arange(300) * 37 % 9000 + 20, SlabCache(model, 310)
    parts = ((0, 131), (131, 156), (156, 157), (157, 160), (160, 299), (299, 300))
    logits = torch.cat([model.forward_all(ids[begin:end], cache, begin) for begin, end in parts])
    return logits, [layer.key_slab[:, :, :300] for layer in cache.layers] + [
        layer.value_slab[:, :, :300] for layer in cache.layers
    ]


@needs_kernels
def test_layers_compute_what_the_modules_compute(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(ModelSettings(device="cpu"))
    decoder = model.module.model
    assert isinstance(decoder.compiled, CompiledLayers) and decoder.compiled._library is library
    logits, slabs = passes(model)
    monkeypatch.setattr(decoder, "compiled", None)
    expected, plain = passes(model)
    assert not torch.equal(logits, expected), "both went the same way"
    assert float((logits - expected).abs().max() / expected.std()) < 5e-3
    for ours, theirs in zip(slabs, plain, strict=True):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-3


@needs_kernels
def test_a_token_is_the_same_alone_and_among_others(reader: LanguageModel) -> None:
    ids = torch.arange(70) * 31 % 9000 + 20
    cache = SlabCache(reader, 80)
    whole = reader.forward_all(ids, cache, 0)
    cache.set_length(0)
    alone = [reader.forward_all(ids[place : place + 1], cache, place)[0] for place in range(70)]
    torch.testing.assert_close(torch.stack(alone), whole, rtol=1e-4, atol=2e-3)


@needs_kernels
def test_a_chunks_keys_are_taken_before_their_rotation(reader: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix, ids = prefill_prefix(reader), [place * 13 % 8000 + 50 for place in range(60)]
    chunk = prefill_chunk(reader, prefix, ids)
    monkeypatch.setattr(reader.module.model, "compiled", None)
    plain = prefill_chunk(reader, prefix, ids)
    assert not torch.equal(chunk.keys, plain.keys), "both went the same way"
    for ours, theirs in ((chunk.keys, plain.keys), (chunk.values, plain.values)):
        assert ours.shape == theirs.shape
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-3


@needs_kernels
def test_several_threads_read_what_one_reads(reader: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in parts, one behind the other, with and without a look at the keys of every layer."""
    prefix, ids = prefill_prefix(reader), torch.arange(330) * 29 % 8000 + 50
    parts = compiled_layers._parts(330, 3)
    assert len(parts) == 6 and [row for part in parts for row in part] == list(range(330))
    results = []
    for count in (1, 3):
        cache = SlabCache(reader, 400)
        monkeypatch.setattr(threads, "_settled", [count])
        logits = reader.forward(ids, cache, 0, logits=True)
        chunk = prefill_chunk(reader, prefix, ids.tolist())
        assert logits is not None
        slabs = [slab[:, :, :330] for layer in cache.layers for slab in (layer.key_slab, layer.value_slab)]
        results.append([logits, chunk.keys, chunk.values, *slabs])
    for one, several in zip(*results, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-4, atol=2e-3)


@needs_kernels
def test_the_pass_waits_in_front_of_every_layer(reader: LanguageModel) -> None:
    """As a question's pass waits for chunks: what is written then is what the layer reads."""
    ids, cache = torch.arange(20, 45), SlabCache(reader, 60)
    context = torch.randn(2, 10, 2, 30, 64)

    def run(fill_early: bool) -> torch.Tensor:
        for layer in cache.layers:
            layer.key_slab.fill_(9.0)
        handles = []
        for index, module in enumerate(reader.decoder_layers):

            def fill(*_: object, index: int = index) -> None:
                for slots, states in zip(cache.write(index, 0, 30), context, strict=True):
                    slots.copy_(states[index])

            if fill_early:
                fill()
            else:
                handles.append(module.register_forward_pre_hook(fill))
        cache.set_length(30)
        logits = reader.forward(ids, cache, 30, logits=True)
        for handle in handles:
            handle.remove()
        assert logits is not None
        return logits.clone()

    assert torch.equal(run(fill_early=True), run(fill_early=False))


@needs_kernels
def test_whoever_looks_into_a_layer_gets_torchs_operations(reader: LanguageModel) -> None:
    calls: list[int] = []
    handle = reader.module.model.layers[3].mlp.register_forward_hook(lambda *_: calls.append(1))
    reader.forward(torch.arange(20, 30), SlabCache(reader, 10), 0, logits=True)
    handle.remove()
    assert calls == [1]


@needs_kernels
def test_layers_that_say_something_else_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(ModelSettings(device="cpu"))
    slab = ModelRunner(model, prefill_prefix(model), build_tables(model, 60), 60)
    slab.prepare([30, 31, 32])
    assert model.module.model.compiled is not None and slab.step is None
    with monkeypatch.context() as patch:
        patch.setattr(CompiledLayers, "run", lambda _self, x, cache, _: (cache.set_length(19), x)[1])
        slab.prepare([30, 31, 32])
    assert model.module.model.compiled is None and slab.step is not None
    assert "compiled layers differ" in caplog.text


@needs_kernels
def test_layers_stay_in_use_if_their_check_fails(reader: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = reader.module.model.compiled
    slab = ModelRunner(reader, prefill_prefix(reader), build_tables(reader, 60), 60)
    real = ModelPass.forward

    def forward(self: ModelPass, token_ids: Sequence[int], start: int) -> torch.Tensor:
        if reader.module.model.compiled is None:
            raise torch.OutOfMemoryError("DefaultCPUAllocator: can't allocate memory")
        return real(self, token_ids, start)

    monkeypatch.setattr(ModelPass, "forward", forward)
    with pytest.raises(torch.OutOfMemoryError):
        slab.prepare([30, 31, 32])
    assert compiled is not None and reader.module.model.compiled is compiled


@needs_kernels
def test_it_is_compiled_once(tmp_path: Path, anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_RAG_KERNELS", str(tmp_path))
    assert kernels.state() == "compiled when a model is first loaded"
    assert kernels.library() is not None
    assert kernels.state() == "compiled for this CPU"
    assert [file.name.startswith("kernels-") for file in tmp_path.iterdir()] == [True]
    kernels._loaded.cache_clear()
    monkeypatch.setattr(subprocess, "run", None)
    assert kernels.library() is not None
    kernels.remove()
    assert list(tmp_path.iterdir()) == []


@needs_compiler
def test_only_what_was_compiled_here_is_loaded_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling needs no CPU of that kind; loading does."""
    monkeypatch.setattr(kernels, "_OPTIONS", ("-O0", *kernels._OPTIONS[1:]))
    monkeypatch.setenv("DESK_RAG_KERNELS", str(tmp_path))
    compiled = kernels._compiled(tmp_path, kernels._AVX2)
    assert compiled.read_bytes().startswith(b"\x7fELF") and list(tmp_path.iterdir()) == [compiled]
    monkeypatch.setenv("CC", shutil.which("false") or "false")
    assert kernels._compiled(tmp_path, kernels._AVX2) == compiled, "it is compiled once"
    others = [tmp_path / name for name in ("kernels-mine.so", f"kernels-{'0' * 16}.so", compiled.name, "thesis.md")]
    kernels.remove()
    assert list(tmp_path.iterdir()) == []
    for file in others:
        file.write_text("a person's own")
    with pytest.raises(subprocess.CalledProcessError):
        kernels._compiled(tmp_path, kernels._AVX2)
    kernels.remove()
    assert [file.read_text() for file in others] == ["a person's own"] * 4


@needs_compiler
@pytest.mark.parametrize("kind", SETS)
def test_they_compile_for_every_kind_of_cpu(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever CPU, and without optimising, which takes most of the time."""
    monkeypatch.setattr(kernels, "_OPTIONS", ("-O0", *kernels._OPTIONS[1:]))
    assert kernels._compiled(tmp_path, SETS[kind]).read_bytes().startswith(b"\x7fELF")


@pytest.mark.parametrize("case", ["switched off", "no compiler", "a compiler that fails", "a folder of others"])
def test_without_kernels_the_reader_loads_and_reads_as_before(
    case: str, reader: LanguageModel, tmp_path: Path, anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_RAG_KERNELS", "" if case == "switched off" else str(tmp_path))
    if case == "no compiler":
        monkeypatch.setattr(kernels, "compiler", lambda: None)
    elif case == "a compiler that fails":
        monkeypatch.setenv("CC", shutil.which("false") or "false")
    elif case == "a folder of others":
        tmp_path.chmod(0o777)
    assert kernels.library() is None
    assert [file for file in tmp_path.iterdir()] == []
    model = load_model(ModelSettings(device="cpu"))
    assert not any(isinstance(module, CompiledLinear) for module in model.module.modules())
    assert model.spec == reader.spec
    assert float((passes(model)[0] - passes(reader)[0]).abs().max() / passes(reader)[0].std()) < 0.05


@needs_kernels
def test_torchs_own_tiles_work_on_behind_them(reader: LanguageModel) -> None:
    """Both configure the AMX tiles of a thread, and torch believes that its configuration lasts."""
    pairs = [(torch.randn(rows, 96).bfloat16(), torch.randn(96, 48).bfloat16()) for rows in (3, 21, 64)]
    expected = [left @ right for left, right in pairs]
    for (left, right), product in zip(pairs, expected, strict=True):
        assert torch.equal(left @ right, product)
        passes(reader)
        assert torch.equal(left @ right, product)


def test_doctor_says_whether_they_are_used(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "desk_rag", "doctor", "--data-dir", str(tmp_path)],
        env={**os.environ, "DESK_RAG_KERNELS": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert "switched off" in next(line for line in done.stdout.splitlines() if " kernels " in line)

"""Secrets are left out by name and by content, ordinary documents are not, and the user's word outranks both."""

from __future__ import annotations

import random
import re
import string
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from desk_rag.config import IndexSettings
from desk_rag.documents.discovery import FoundFile, LeftOut, examine, walk
from desk_rag.documents.rules.sensitive import NAME_RULES, NAME_WORDS, secret_in

SECRET_NAMES = """
    credentials.json aws_credentials.csv .credentials credentials service-account.json Service-Account-prod.json
    my-service_account.json client_secret.json client_secret_123.apps.googleusercontent.com.json secrets.yaml secrets.md
    app-secrets.yml secrets-prod.json secret.txt token.txt .token token.json github-token.txt access_token my-tokens.txt
    .vault-token .vault-token.txt old-vault-token-2.md passwords.txt Passwords.DOCX my-passwords.txt passwords-old.csv
    Passwörter.txt password.txt passwd.txt wallet.dat wallet.txt my.wallet bitcoin-wallet.json wallet-backup.txt
    kubeconfig kubeconfig.yaml prod-kubeconfig.yaml kubeconfig-prod keys.kdbx .pgpass .htpasswd .netrc api_key.txt
    api-keys.csv credentials-prod.json recovery-codes.txt seed-phrase.md github-recovery-codes.pdf .ENV
    SERVER.PEM PROD.env ID_RSA ID_RSA.txt
    a.KEY a.P12 a.pfx a.jks a.ppk .git-credentials rclone.conf logins.json .my.cnf
"""
SECRET_PLACES = """
    .ssh/config.txt .aws/readme.md .azure/a.json .config/gcloud/a.json work/.config/gcloud/notes.txt .kube/config.yaml
    .docker/config.json .gnupg/a.txt .Password-Store/a.txt backup/.SSH/notes.md
"""
SPACED_SECRET_NAMES = (
    """
    login details bank.md|Log-in details.docx|wifi password.txt|My bank password.docx|password list.xlsx
    password 2024.pdf|Zugangsdaten.odt|Anmeldedaten Bank.txt|access data.txt|logins.xlsx|bank logins.csv|SIM PUK.txt
    bank pin.txt|PIN phone and tablet.docx
    PIN codes.md|pin and puk.txt|card pin code.txt|Kennwort.docx|WLAN Passwort.md|login-details.html|sign_in_details.csv
""".strip()
    .replace("\n    ", "|")
    .split("|")
)
SPACED_ORDINARY = (
    """
    how to choose a password.md|Reset password.pdf|forgotten password.docx|why no password.md|login page.html
    access to the roof.md|account details.pdf|user_logins.csv|forgot-password.html|reset_password.txt|pin.md
    pinboard.txt|drawing pins.txt|details.md|Daten.csv|weather data.csv|access.log|login.html|the password game.md
""".strip()
    .replace("\n    ", "|")
    .split("|")
)
ORDINARY = """
    tokenizer.py tokenizer.json tokens.json tokenization.md special_tokens_map.json token_counter.py tokens.py
    secretary-letter.md secret-garden.md the-secrets-of-bees.pdf trade-secrets.md secrets-of-the-sea.txt secrets.py
    wallet-size-photos.md wallet.py my-wallet-was-stolen.md password-policy.pdf password-managers-compared.md
    change-password.md passwords.py passwordless-login.md credentials.py press-credentials.md credentials-guide.md
    service-account.yaml service-account-guide.md account.json kubeconfig-guide.md api-key-rotation.md api_keys.py
    monkey.txt keyboard.md public-keys.md backup-codes-explained.md recovery-plan.docx postal-codes.csv phrase-book.txt
    key.md aws/guide.md gcloud/notes.md docker/readme.md clients.md
"""


def test_names_of_secrets_are_left_out_and_ordinary_names_are_not(tmp_path: Path) -> None:
    secret, ordinary = [*SECRET_NAMES.split(), *SPACED_SECRET_NAMES], {*ORDINARY.split(), *SPACED_ORDINARY}
    for name in (*secret, *SECRET_PLACES.split(), *ordinary):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("words")
    items = list(walk(tmp_path, IndexSettings(hidden=True)))
    names = {item.path.relative_to(tmp_path).as_posix() for item in items if isinstance(item, FoundFile)}
    assert sorted(names - ordinary) == []
    assert sorted(ordinary - names) == []
    assert all(item.reason.startswith("secret: ") for item in items if isinstance(item, LeftOut))
    for name in secret:
        verdict = examine(tmp_path, tmp_path / name, IndexSettings())
        assert isinstance(verdict, LeftOut) and verdict.reason.startswith("secret: "), name


@settings(deadline=None)  # on a busy machine, files take their time
@given(st.sampled_from([*SECRET_NAMES.split(), *SPACED_SECRET_NAMES]), st.randoms(use_true_random=False))
def test_a_secret_name_is_one_in_any_case_and_any_folder(name: str, chance: random.Random) -> None:
    spelled = "".join(chance.choice((letter.lower(), letter.upper())) for letter in name)
    with tempfile.TemporaryDirectory() as desk:
        for path in (Path(desk, spelled), Path(desk, "letters 2024", "Ana", spelled)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("words")
            verdict = examine(Path(desk), path, IndexSettings())
            assert isinstance(verdict, LeftOut) and verdict.reason.startswith("secret: "), path


_PROSE = tuple("the rent of May was paid in cash by Ana Weil, 128 crowns for key no. 7".replace(",", " ,").split(" "))


@given(st.integers())
def test_a_private_key_is_found_wherever_it_stands_and_prose_never_is(seed: int) -> None:
    chance = random.Random(seed)
    before, after = (chance.choices(_PROSE, k=chance.randrange(400)) for _ in range(2))
    body = "\n".join("".join(chance.choices(string.ascii_letters + string.digits + "+/", k=64)) for _ in range(12))
    kind = chance.choice(("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "))
    key = f"-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"
    assert secret_in(f"{' '.join(before)}\n{key}\n{' '.join(after)}") == "a private key"
    assert secret_in(" ".join(before + after)) == ""


def test_a_folder_is_not_left_out_for_a_file_name(tmp_path: Path) -> None:
    for folder in ("secrets", "tokens.txt", "passwords.txt"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "essay.md").write_text("words")
    assert sum(isinstance(item, FoundFile) for item in walk(tmp_path, IndexSettings())) == 3


def test_the_user_allows_one(tmp_path: Path) -> None:
    for name in ("token.txt", "a/token.txt", "passwords.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words")
    (tmp_path / ".deskragignore").write_text("!*\n")  # a folder's own file may not allow: it may come from anybody
    settings = IndexSettings(exclude=("!/a/token.txt",))
    (listed,) = [item for item in walk(tmp_path, settings) if isinstance(item, FoundFile)]
    assert listed.path == tmp_path / "a" / "token.txt" and listed.allowed


def test_every_name_rule_is_reached_through_its_words() -> None:
    """The quick look at a name passes over none that a rule would match."""
    words = re.compile(f".*(?:{NAME_WORDS})", re.IGNORECASE)
    names = [*SECRET_NAMES.split(), *SPACED_SECRET_NAMES]
    for _, rule in NAME_RULES:
        matched = [name for name in names if re.fullmatch(rule, name, re.IGNORECASE)]
        assert matched, rule
        assert all(words.match(name) for name in matched)


CHANCE = random.Random(1)  # the same letters in every process: they stand in the names of tests


def letters(count: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(CHANCE.choice(alphabet) for _ in range(count))


def pem(kind: str = "RSA PRIVATE KEY", lines: int = 12, end: str = "\n") -> str:
    return end.join([f"-----BEGIN {kind}-----", *(letters(64) for _ in range(lines)), f"-----END {kind}-----"])


ESSAY = "The harbour master keeps the keys in a tin box and writes down who takes one of them. " * 12
KEYS = {
    "rsa": pem(),
    "pkcs8": pem("PRIVATE KEY", lines=1),
    "openssh": pem("OPENSSH PRIVATE KEY"),
    "encrypted": pem("ENCRYPTED PRIVATE KEY"),
    "headers": pem().replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,D4E5\n\n", 1),
    "pgp": pem("PGP PRIVATE KEY BLOCK").replace("BLOCK-----\n", "BLOCK-----\nVersion: GnuPG v2\n\n", 1),
    "json": '{"private_key": "' + pem("PRIVATE KEY", end="\\n") + '", "client_id": "1"}',
    "yaml": "tls:\n  key: |\n    " + pem(end="\n    "),
    "in an essay": ESSAY + "\n\n" + pem() + "\n\n" + ESSAY,
    "age": "# created: 2024\nAGE-SECRET-KEY-1" + letters(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L") + "\n",
    "putty": "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nComment: me\nPublic-Lines: 1\n"
    + letters(64) + "\nPrivate-Lines: 1\n" + letters(64) + "\nPrivate-MAC: ab\n",
}  # fmt: skip
TOKENS = {
    "aws": "AKIA" + letters(16, string.ascii_uppercase + "234567"),
    "github": "ghp_" + letters(36),
    "fine-grained": "github_pat_" + letters(82),
    "slack": "xoxb-" + letters(11, string.digits) + "-" + letters(24),
    "google": "AIza" + letters(35),
    "stripe": "sk_" + "live_" + letters(24),
    "openai": "sk-proj-" + letters(48),
    "hugging face": "hf_" + letters(34, string.ascii_letters),
    "jwt": "eyJ" + letters(33) + ".eyJ" + letters(80) + "." + letters(43),
    "vault": "hvs." + letters(90),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_private_key_is_a_secret_wherever_it_stands(name: str) -> None:
    assert secret_in(KEYS[name]) == "a private key"


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_a_secret_where_it_is_most_of_the_file(name: str) -> None:
    token = TOKENS[name]
    for text in (token, f"{token}\n", f"My token for the laptop:\n\n    {token}\n", f"export TOKEN={token}\n"):
        assert secret_in(text).startswith("an access token ("), text
    assert secret_in("\n".join(f"name{number} {token}" for number in range(40)))
    assert secret_in(f"{ESSAY}\n\nIt looks like this: {token}\n\n{ESSAY}") == "", "a guide that shows one"


@pytest.mark.parametrize(
    "text",
    [
        "A key file begins with -----BEGIN RSA PRIVATE KEY----- and ends with -----END RSA PRIVATE KEY-----.",
        "-----BEGIN PRIVATE KEY-----\nMIIEvQ...\n-----END PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\n" + "x" * 64 + "\n-----END PRIVATE KEY-----",
        "-----BEGIN PUBLIC KEY-----\n" + letters(64) + "\n-----END PUBLIC KEY-----",
        "-----BEGIN CERTIFICATE-----\n" + letters(64) + "\n-----END CERTIFICATE-----",
        "Use AKIAIOSFODNN7EXAMPLE in the examples.",
        "ghp_" + "x" * 36,
        "a PuTTY-User-Key-File-3 is what PuTTY saves",
        "The tokenizer splits skeleton-key-words into sk, and -eleton.",
        "",
    ],
)
def test_what_only_speaks_of_secrets_is_no_secret(text: str) -> None:
    assert secret_in(text) == ""


@pytest.mark.parametrize("unit", ["eyJ-", "pypi-", "-----BEGIN PRIVATE KEY-----", "AGE-SECRET-KEY-1", "sk-", "PuTTY-"])
def test_hostile_repetition_ends(unit: str) -> None:
    secret_in(unit * (2_000_000 // len(unit)))

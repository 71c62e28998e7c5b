"""Recognise secrets, which are not indexed, by file name and by content.

Name rules must not exclude ordinary documents: they require a suffix for data, so that 'secrets.yaml' is left out and
'secret-garden.md' is not. Content is a secret if it holds a private key, or if it consists mostly of access tokens of a
known form; a guide that shows one token stays. The user's `!pattern` in `exclude` overrides both.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

NAME_PATTERNS = """
    *.env .env .env.* .envrc *.pem *.key *.p8 *.p12 *.pfx *.pkcs12 *.jks *.jceks *.bks *.keystore *.keytab *.ppk *.asc
    *.gpg *.ovpn *.kdb *.kdbx *.psafe3 *.1pif *.1pux *.keychain *.keychain-db *.agilekeychain/ *.opvault/
    id_rsa* id_dsa* id_ecdsa* id_ed25519* .ssh/ .gnupg/ .aws/ .azure/ .gcloud/ **/.config/gcloud/ **/.config/gh/
    **/.config/rclone/ rclone.conf .kube/ .docker/ .dockercfg .password-store/ .secrets/ .netrc _netrc .pgpass .my.cnf
    .mylogin.cnf .s3cfg .boto .htpasswd htpasswd .npmrc .pypirc .git-credentials .terraformrc logins.json key4.db
"""
"""In .gitignore syntax; capital and small letters are the same."""

_SETTINGS = r"(?:json|ya?ml|toml|ini|cfg|conf|config|properties|env|xml|plist|enc)"
_DATA = rf"(?:{_SETTINGS}|txt|text|csv|tsv|log|bak|old)"
_PAPERS = rf"(?:{_DATA}|md|org|rtf|docx?|odt|pdf|html?|xlsx?|ods)"
_PASSWORDS = r"(?:passwords|passwd|passw(?:ö|oe)rter|kennw(?:ö|oe)rter|contraseñas|mots[-_ ]de[-_ ]passe)"
_PASSWORD = r"(?:password|passwort|kennwort|contraseña|mot de passe)"
_ABOUT = r".*\b(?:how|why|without|reset\w*|forg[eo]t\w*|chang\w+|choos\w+|lost|strong|safe|good)\b"
"""Words in names of documents that are about passwords and hold none."""
_LOGIN = r"(?:(?:log[-_ ]?in|sign[-_ ]?in|access)[-_ ](?:details|credentials|daten)|(?:login|zugangs|anmelde)daten)"
_WITH_PIN = r"(?:bank|card|phone|sim|mobile|account)"

NAME_RULES: tuple[tuple[str, str], ...] = (
    ("passwords", rf"(?:.*[-_. ])?{_PASSWORDS}(?:[-_. ](?:old|new|bak|backup|copy|export|\d).*)?\.{_PAPERS}"),
    ("password", rf"password\.{_DATA}"),
    ("password", rf"(?!{_ABOUT})(?:[^-_.]+ )?{_PASSWORD}(?: (?:list|sheet|book|old|new|\d+))?\.{_PAPERS}"),
    ("login details", rf"(?:.*[-_. ])?{_LOGIN}(?:[-_. ].*)?\.{_PAPERS}|(?:.* )?(?:logins|access data)\.{_PAPERS}"),
    ("PIN", rf"(?:.*[-_. ])?(?:{_WITH_PIN}[-_ ]pins?|pins?[-_ ]{_WITH_PIN}[^.]*)\.{_PAPERS}"),
    ("PIN", rf"(?:.*[-_. ])?(?:pin[-_ ]?(?:codes?|numbers?)|pins? (?:and|und|&) puks?|puks?)\.{_PAPERS}"),
    ("secrets", rf"\.?secrets(?:\.{_PAPERS})?|.*[-_. ]secrets\.{_SETTINGS}|secret\.{_DATA}"),
    ("secrets", rf"secrets?[-_.](?:prod|production|dev|development|staging|test|local|live)(?:[-_.].*)?\.{_SETTINGS}"),
    ("credentials", rf"\.?credentials?(?:\.{_DATA})?|.*[-_. ]credentials(?:\.(?:{_SETTINGS}|csv))?"),
    ("credentials", rf"credentials[-_.].*\.(?:{_SETTINGS}|csv)"),
    ("service account", r"(?:.*[-_. ])?service[-_ ]?accounts?(?:[-_. ].*)?\.json"),
    ("client secret", rf"(?:.*[-_. ])?client[-_]?secrets?(?:[-_. ].*)?\.{_DATA}"),
    ("token", r"\.?(?:.*[-_. ])?token(?:\.(?:txt|json|ya?ml|pickle))?|(?:.*[-_. ])?tokens\.txt"),
    ("vault token", r".*vault[-_]?token.*"),
    ("API key", rf"(?:.*[-_. ])?api[-_]?keys?(?:\.{_DATA})?"),
    ("wallet", r"(?:.*[-_. ])?wallets?\.(?:dat|json|txt|csv|aes)|.*\.wallet"),
    ("wallet", r"wallet[-_.](?:backup|seed|keys?)(?:[-_. ].*)?"),
    ("recovery codes", rf"(?:.*[-_. ])?(?:seed|recovery|mnemonic|backup)[-_ ]?(?:phrase|codes)\.{_PAPERS}"),
    ("kubeconfig", rf"(?:.*[-_.])?kubeconfig(?:\.{_SETTINGS})?|kubeconfig[-_][^.]*(?:\.ya?ml)?"),
)
"""Kind of secret, and a regular expression for the whole file name; case is ignored."""

NAME_WORDS = (
    r"passw|kennw|contrase|mots?.de|secret|credential|account|token|keys?|wallet|phrase|codes?|kubeconfig"
    r"|details|daten|logins|access|pins?|puks?"
)
"""Every name that one of NAME_RULES matches holds one of these."""

_SECRET_PLACES = """
    .ssh .gnupg .aws .azure .gcloud .kube .docker .password-store .config/gcloud .config/gh .config/rclone
    .local/share/keyrings .mozilla .netrc .pgpass .git-credentials .npmrc .pypirc .vault-token
"""
"""Places in a home directory that hold secrets."""
_MOST_SECRET_FILES = 20_000

_PEM = re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----")
_PEM_REACH = 8192
_BREAKS = re.compile(r"(?:\s|\\n|\\r|[\"'>|,])+")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{40,}")
_FEWEST_KEY_LETTERS, _FEWEST_DIFFERENT = 40, 16
_AGE = re.compile(r"AGE-SECRET-KEY-1[02-9AC-HJ-NP-Z]{58}\b")
_PUTTY = re.compile(r"^\s*PuTTY-User-Key-File-\d")
_PUTTY_DATA = re.compile(r"\bPrivate-Lines: \d+\s+[A-Za-z0-9+/=]{40}")
_TOKENS: tuple[tuple[str, str, str], ...] = (
    ("AWS", "AKIA ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    ("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b"),
    ("GitHub", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{60,255}\b"),
    ("GitLab", "glpat-", r"\bglpat-[\w-]{20,64}"),
    ("Slack", "xox", r"\bxox[abeoprs]-[\w-]{10,255}"),
    ("Google", "AIza GOCSPX- ya29.", r"\bAIza[\w-]{35}|\bGOCSPX-[\w-]{28}|\bya29\.[\w-]{20,1000}"),
    ("Stripe", "k_live_", r"\b[rs]k_live_[A-Za-z0-9]{16,255}\b"),
    ("OpenAI or Anthropic", "sk-", r"\bsk-(?:ant-|proj-)?[\w-]{32,255}"),
    ("Hugging Face", "hf_", r"\bhf_[A-Za-z0-9]{30,64}\b"),
    ("npm", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    ("PyPI", "pypi-", r"\bpypi-[\w-]{50,500}"),
    ("SendGrid", "SG.", r"\bSG\.[\w-]{22}\.[\w-]{43}"),
    ("DigitalOcean", "_v1_", r"\bdo[opr]_v1_[a-f0-9]{64}\b"),
    ("Vault", "hvs. hvb. hvr.", r"\bhv[sbr]\.[\w-]{24,255}"),
    ("Telegram", ":AA", r"\b\d{8,10}:AA[\w-]{33}"),
    ("JSON Web Token", ".eyJ", r"(?<![\w-])eyJ[\w-]{8,4000}\.eyJ[\w-]{8,8000}\.[\w-]{16,2000}"),
)
"""Whose, what stands in every one, and the form."""
_PLACEHOLDER = re.compile(r"example|xxxx|0000|1234567|your|\.\.\.", re.IGNORECASE)
_MOST_TOKENS = 1000
_FEW_WORDS = 20
_TOKEN_SHARE = 4
"""A file is a secret where tokens are a quarter of its characters, or where hardly a word stands beside them."""


def secret_in(text: str) -> str:
    """Return what makes `text` a secret, as a noun phrase; '' for an ordinary document."""
    keys = (_holds_key(text, match.end()) for match in _PEM.finditer(text))
    if _AGE.search(text) or (_PUTTY.match(text) and _PUTTY_DATA.search(text)) or any(keys):
        return "a private key"
    owners: dict[str, None] = {}
    rest, letters = text, 0
    for owner, hints, form in _TOKENS:
        tokens = [token for token in islice(_matches(form, hints.split(), rest), _MOST_TOKENS) if _is_random(token)]
        if tokens:
            owners[owner] = None
            letters += sum(map(len, tokens))
            rest = re.sub(form, " ", rest)
    beside = rest.split()
    few = len(beside) <= _FEW_WORDS or sum(map(len, beside)) <= (_TOKEN_SHARE - 1) * letters
    return f"an access token ({', '.join(owners)})" if owners and few else ""


def _matches(form: str, hints: list[str], text: str) -> Iterator[str]:
    """Texts of this form, searched only in lines that hold a hint: an expression takes far longer than a word."""
    if any(hint in text for hint in hints):
        for line in text.split("\n"):
            if any(hint in line for hint in hints):
                yield from (match[0] for match in re.finditer(form, line))


def _is_random(token: str) -> bool:
    """False for what a manual shows in the place of a token."""
    return not _PLACEHOLDER.search(token) and len(set(token)) >= _FEWEST_DIFFERENT // 2


def _holds_key(text: str, start: int) -> bool:
    """True if a key's data follow its header, and not the dots or capital X of an example."""
    body = text[start : start + _PEM_REACH].split("-----", 1)[0]
    data = [word for word in _BREAKS.split(body) if _BASE64.fullmatch(word) and len(set(word)) >= _FEWEST_DIFFERENT]
    return sum(map(len, data)) >= _FEWEST_KEY_LETTERS


def linked_secrets(home: Path) -> Iterator[tuple[tuple[int, int], Path]]:
    """Yield ((device, inode), path) of files with several names in the usual places for secrets."""
    looked_at = 0
    for place in (home / name for name in _SECRET_PLACES.split()):
        walked = os.walk(place) if place.is_dir() else [(str(place.parent), [], [place.name])]
        for folder, _, names in walked:
            for path in (Path(folder, name) for name in names):
                looked_at += 1
                if looked_at > _MOST_SECRET_FILES:
                    return
                try:
                    info = path.lstat()
                except OSError:
                    continue
                if stat.S_ISREG(info.st_mode) and info.st_nlink > 1:
                    yield (info.st_dev, info.st_ino), path

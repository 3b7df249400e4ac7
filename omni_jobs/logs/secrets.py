"""What is secret in a text, whoever put it there: ``without_secrets`` takes it out.

A secret is known by its form (an API key, a password in a URL, a signature, a data URL), or by itself, because the
settings of this process have it. A stranger may have written the text so that a search for the forms takes long:
each form's repetitions are bounded, and ``line_filter`` cuts the text first.
"""

import json
import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from omni_jobs.errors import ConfigError
from omni_jobs.settings import Settings

API_KEY: Final = re.compile(r"omni_[A-Za-z0-9_-]{43}")
_HINT_CHARACTERS = 9  # "omni_" and four more: 24 of the 256 random bits
_SHORTEST = 6  # of a secret that is known by itself: a shorter one would blot out words
_NO_WORD = 16  # characters of one that is no word, and is taken out also where a letter stands beside it
_OF_A_MEDIUM = 256  # characters of base64 in a row, which are a medium, perhaps
_MOST_ESCAPES = 3  # times that a URL may be escaped within another one
_GONE = "…"
_SEPARATOR = r"[\\\"']{0,4}\s{0,8}(?:[=:]|,(?=\s{0,8}b?[\\\"']))\s{0,8}"  # also of a pair in a list
_NAMES = (
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|passw(?:or)?d|pwd|passphrase|signature|credential)s?"
    r"|(?:(?:access|auth|api|session|refresh|id|hf|security)[_-]?|(?<!\w))token"  # max_tokens is no secret
    r"|x-amz-[\w-]{1,40}"
)
_TO_QUOTE = r"[^\n\"']{1,4096}"
_FORMS: Final = (
    (re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}-----|\Z)", re.DOTALL), _GONE),
    # A data URL: who logs needs its type alone.
    (re.compile(r"(data:[\w.+/-]{0,255})[;,][\w.+/=;%,-]*", re.IGNORECASE), rf"\1,{_GONE}"),
    # A password in a URL. It may have the characters of a path, where whoever wrote the URL forgot to escape them.
    (re.compile(r"(?<=://)(?=[^\s@'\"<>]{0,512}:)[^\s'\"<>]{1,1024}@"), f"{_GONE}@"),
    (re.compile(r"(?<=://)[^\s@/?#'\"<>]{1,1024}@"), f"{_GONE}@"),
    (re.compile(rf"(\b(?:set-)?cookie{_SEPARATOR})[^\n]+", re.IGNORECASE), rf"\1{_GONE}"),
    (re.compile(rf"(authorization{_SEPARATOR}b?[\\\"']{{0,4}}){_TO_QUOTE}", re.IGNORECASE), rf"\1{_GONE}"),
    (re.compile(r"\b(Bearer|Basic)\s{1,8}[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {_GONE}"),
    (re.compile(rf"((?:{_NAMES}){_SEPARATOR}b?(\\?[\"']))[^\n]{{0,4096}}?(?<!\\)\2", re.IGNORECASE), rf"\1{_GONE}\2"),
    (re.compile(rf"((?:{_NAMES}){_SEPARATOR}b?[\\\"']{{0,4}})[^\s\"'&)}}\]]+", re.IGNORECASE), rf"\1{_GONE}"),
    (re.compile(r"(?<![\w-])(sk|pk|rk|hf|gh[opsur]|github_pat|glpat|xox[a-z])([-_])[\w-]{12,}"), rf"\1\2{_GONE}"),
    (re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), _GONE),  # a JSON web token
    (re.compile(rf"[A-Za-z0-9+/_-]{{{_OF_A_MEDIUM},}}={{0,2}}"), _GONE),  # base64
)
_SIGNS: Final = (
    *("omni_", "://", "data:", "bearer", "basic", "key", "token", "secret", "passw", "pwd", "passphrase", "signature"),
    *("credential", "authorization", "cookie", "x-amz", "eyj", "xox", "%", "sk-", "sk_", "pk-", "pk_", "rk-", "rk_"),
    *("hf-", "hf_", "gho", "ghp", "ghs", "ghu", "ghr", "github_pat", "glpat"),
)
"""A text without any of these has no form in it, unless it is long. Nearly all are such."""
_FOREIGN = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|HEADERS", re.IGNORECASE)
_NOTHING = re.compile(r"(?!)")
_LIKE_A_NAME = re.compile(r"[\w-]+", re.ASCII)
_known: set[str] = set()
_any_like_a_name = _any_other = _NOTHING  # of those that are known


def mask_keys(text: str) -> str:
    """Return the text with each API key in it cut to its hint, so that logs and answers may show it."""
    return API_KEY.sub(lambda found: f"{found[0][:_HINT_CHARACTERS]}{_GONE}", text)


def without_secrets(text: str) -> str:
    """Return the text without the secrets in it, also where they are escaped as in a URL."""
    if len(text) < _OF_A_MEDIUM and not any(map(text.casefold().__contains__, _SIGNS)):
        return _any_like_a_name.sub(_GONE, _any_other.sub(_GONE, text))
    text = plain = _without_known_and_forms(text)
    for _ in range(_MOST_ESCAPES):
        if "%" not in plain or (unescaped := unquote(plain)) == plain:
            break
        plain = _without_known_and_forms(unescaped)
        if plain != unescaped:
            text = quote(plain, safe="/?&=…:@ ,;'\"()[]{}")
    return text


def _without_known_and_forms(text: str) -> str:
    """Return the text without known secrets and forms.

    A form may take a part of a known secret, such as that before a blank, so those are taken out first. One like a name
    comes last: a password ``secret`` would hide that ``aws_secret_access_key`` stands before another secret.
    """
    text = mask_keys(_any_other.sub(_GONE, text))
    for form, rest in _FORMS:
        text = form.sub(rest, text)
    return _any_like_a_name.sub(_GONE, text)


def know_secrets(settings: Settings) -> None:
    """Take out the secrets of these settings, and of the variables that libraries read, from every text from now on."""
    urls = [settings.broker_url.get_secret_value(), settings.database_url or "", settings.storage_url or ""]
    found = [part for url in urls for part in _of_url(url)]
    for server in settings.servers.values():
        with suppress(ConfigError):  # whoever needs the key says what is wrong with its file
            if (key := server.read_key()) is not None:
                found.append(key.get_secret_value())
    if settings.api_key is not None:
        found.append(settings.api_key.get_secret_value())
    foreign = [name for name in os.environ if name.startswith(("AWS_", "PG", "OTEL_", "HF_")) and _FOREIGN.search(name)]
    found += [os.environ[name] for name in foreign if not name.endswith("FILE")]  # a file's name is to be read
    know(found)


def know(secrets: Iterable[str]) -> None:
    """Take these out of every text from now on, as they are and as URLs and JSON show them; not those of a few letters.

    A short one may be a word: within a longer word it stays.
    """
    global _any_like_a_name, _any_other
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            _known.update((secret, quote(secret, safe=""), json.dumps(secret)[1:-1]))
    like_names = {each for each in _known if _LIKE_A_NAME.fullmatch(each)}
    _any_like_a_name, _any_other = _any_of(like_names), _any_of(_known - like_names)


def _any_of(secrets: Collection[str]) -> re.Pattern[str]:
    longest_first = [re.escape(each) for each in sorted(secrets, key=len, reverse=True)]
    no_words = [each for each in longest_first if len(each) >= _NO_WORD]
    words = [rf"(?<![A-Za-z0-9]){each}(?![A-Za-z0-9])" for each in longest_first if len(each) < _NO_WORD]
    return re.compile("|".join([*no_words, *words])) if secrets else _NOTHING


def _of_url(url: str) -> list[str]:
    """Return the passwords of a URL, of its authority and of its query."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return []
    of_query = [value for name, value in parse_qsl(parts.query) if name.lower() in ("password", "sslpassword")]
    return [unquote(each) for each in (password, *of_query) if each]

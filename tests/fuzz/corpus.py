"""The corpus: for every kind of answer that fuzzing met, the shortest input that got it; and what once broke a decoder.

``answers.json`` says which decoder answers a file with which error of which field; the
error null: accepted. ``tests/unit/payloads/test_payloads_fuzz.py`` asks again.
"""

import json
import re
from dataclasses import asdict, dataclass
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final

from tests.fuzz.answers import Answer, Decoder

__all__ = ["CORPUS", "Case", "Collected", "cases"]

CORPUS: Final = Path(__file__).parent / "corpus"
_ANSWERS: Final = "answers.json"
_FOUND: Final = "found-"
_LONGEST: Final = 2048
_SHOWN: Final = re.compile(
    r"'(?:[^'\\]|\\.)*'?…?|\"(?:[^\"\\]|\\.)*\"?…?|-?\d[\d.e+-]*…?|\b(?:nan|inf|None|True|False)\b"
)
_DTYPE: Final = re.compile(r"\b(?:BOOL|BF16|[UIF]\d+)\b")
_TENSOR: Final = re.compile(r"^(?:prompt_embeds\.)?(tensors|structure|values)\..*?(\.shape|\.dtype|\.data_offsets)?$")


@dataclass(frozen=True)
class Case:
    """A file of the corpus and one decoder's answer to it."""

    file: str
    decoder: Decoder
    error: str | None
    field: str | None

    def data(self) -> bytes:
        return (CORPUS / self.file).read_bytes()


class Collected:
    """The shortest input of each kind of answer; a kind is the decoder, the error, the field and its wording."""

    def __init__(self) -> None:
        self._shortest: dict[tuple[str, ...], tuple[bytes, Decoder, Answer]] = {}

    def __len__(self) -> int:
        return len(self._shortest)

    def add(self, decoder: Decoder, data: bytes, answer: Answer) -> None:
        if len(data) > _LONGEST:
            return
        kind = _kind(decoder, answer)
        known = self._shortest.get(kind)
        if known is None or (len(data), data) < (len(known[0]), known[0]):
            self._shortest[kind] = (data, decoder, answer)

    def write(self, folder: Path) -> None:
        """Replaces what is in the folder, but for the files called ``found-…``, which once broke a decoder."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.safetensors"):
            if not path.name.startswith(_FOUND):
                path.unlink()
        listed = [case for case in _listed(folder) if case["file"].startswith(_FOUND)]
        for data, decoder, answer in self._shortest.values():
            name = f"{blake2s(data, digest_size=6).hexdigest()}.safetensors"
            (folder / name).write_bytes(data)
            listed.append(asdict(Case(name, decoder, answer.error, answer.field)) | {"decoder": decoder.value})
        listed.sort(key=lambda case: (case["decoder"], case["error"] or "", case["field"] or "", case["file"]))
        text = json.dumps(listed, indent=1, ensure_ascii=True)
        (folder / _ANSWERS).write_text(text + "\n", encoding="utf-8")


def cases() -> list[Case]:
    """What the corpus holds."""
    return [Case(**case | {"decoder": Decoder(case["decoder"])}) for case in _listed(CORPUS)]


def _listed(folder: Path) -> list[dict[str, Any]]:
    answers = folder / _ANSWERS
    return json.loads(answers.read_text(encoding="utf-8")) if answers.exists() else []


def _kind(decoder: Decoder, answer: Answer) -> tuple[str, ...]:
    field = _TENSOR.sub(r"\1.NAME\2", answer.field or "")
    wording = _DTYPE.sub("DTYPE", _SHOWN.sub("…", answer.message))
    return (decoder.value, answer.error or "accepted", field, wording)

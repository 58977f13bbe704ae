"""The texts of the console in each language: one JSON file per language, key to text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_FOLDER: Final = Path(__file__).parent / "texts"
DEFAULT: Final = "en"
#: Code -> the name of the language in itself.
NAMES: Final = {"en": "English", "zh": "中文"}


@dataclass(frozen=True, slots=True)
class Language:
    """A language.

    Attributes:
        code: For the `lang` attribute.
        texts: Key -> text; `{name}` stands for a value.
    """

    code: str
    texts: Mapping[str, str]

    def text(self, key: str, **values: object) -> str:
        """Return a text with its values filled in; an unknown key is a `KeyError`."""
        text = self.texts[key]
        return text.format(**values) if values else text

    def word(self, kind: str, value: str) -> str:
        """Return a fixed word of the cluster's pages in this language; an unknown one as it is."""
        return self.texts.get(f"{kind}.{value}", value)

    def note(self, code: str, text: str, values: Mapping[str, object]) -> str:
        """Return a note of a page in this language, or the English text of the note."""
        template = self.texts.get(f"note.{code}")
        if self.code == DEFAULT or template is None:
            return text  # the English text of a note has more facts than its template
        try:
            return template.format(**values)
        except (KeyError, IndexError, ValueError):
            return text

    def problem(self, error: Exception) -> str | None:
        """Return what an error means in this language; None in English, which its text is in."""
        if self.code == DEFAULT:
            return None
        kinds = (f"problem.{kind.__name__}" for kind in type(error).__mro__)
        return next((self.texts[key] for key in kinds if key in self.texts), None)


def load_languages() -> dict[str, Language]:
    """Read all languages, by code."""
    return {
        code: Language(code, json.loads((_FOLDER / f"{code}.json").read_text(encoding="utf-8")))
        for code in NAMES
    }


def choose(chosen: str | None, accepted: str, languages: Mapping[str, Language]) -> Language:
    """Return the language that a visitor chose, or the first known one of Accept-Language."""
    if chosen is not None and chosen in languages:
        return languages[chosen]
    for part in accepted.split(","):
        code = part.split(";")[0].strip().lower().split("-")[0]
        if code in languages:
            return languages[code]
    return languages[DEFAULT]

"""What a plug-in declares: one value, `PLUGIN`, that is checked when its module is loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, ClassVar, get_args, get_origin

from harness.errors import BadRequest

_WORDS = {
    Callable: "a function",
    frozenset: "a frozenset of strings",
    Mapping: "a mapping",
    Sequence: "a list or tuple",
    bool: "True or False",
    NoneType: "None",
}


class Plugin:
    """The declaration of one plug-in. Unknown, missing and mistyped attributes are refused."""

    MAIN: ClassVar[str]  # the function that every plug-in of its kind has

    def __new__(cls, *_: Any, **declared: Any) -> "Plugin":
        """Raise BadRequest for an attribute that is unknown or missing."""
        known = {each.name: each for each in _fields(cls)}
        for name in declared:
            if name not in known:
                raise BadRequest(f"{cls.__name__} has no {name!r}{near(name, known)}")
        for name, each in known.items():
            if name not in declared and each.default is each.default_factory is MISSING:
                raise BadRequest(f"{cls.__name__} lacks {name!r}, which has no default")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Raise BadRequest for an attribute of a wrong type."""
        for each in _fields(type(self)):
            value = getattr(self, each.name)
            if not _fits(value, each.type):
                raise BadRequest(
                    f"{each.name!r} of {type(self).__name__} must be {_words(each.type)}, not"
                    f" {value!r}"
                )

    def left_out(self) -> list[str]:
        """Names of the attributes that have their default values."""
        return [
            each.name
            for each in _fields(type(self))
            if (each.default is not MISSING and getattr(self, each.name) is each.default)
            or (each.default_factory is not MISSING and not getattr(self, each.name))
        ]


def near(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The nearest right spelling, as the end of a sentence, and all that there are."""
    close = get_close_matches(name.lower(), known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{hint}; it has: {', '.join(sorted(known))}"


def _words(type_: Any) -> str:
    kind = get_origin(type_) or type_
    if kind is UnionType:
        return " or ".join(map(_words, get_args(type_)))
    return _WORDS.get(kind) or f"of type {kind.__name__}"


def _fields(cls: Any) -> Sequence[Field[Any]]:
    return fields(cls)


def _fits(value: object, type_: Any) -> bool:
    """Whether the value has the type, as far as that can be seen at once."""
    origin, inner = get_origin(type_) or type_, get_args(type_)
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if not isinstance(value, origin) or (isinstance(value, str) and origin is Sequence):
        return False
    if origin is frozenset:
        return all(isinstance(item, str) for item in value)
    if origin is Mapping and inner[1] is not Any:
        return all(isinstance(item, inner[1]) for item in value.values())
    return True

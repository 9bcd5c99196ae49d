"""What a plug-in declares: one value, `PLUGIN`, that is checked when its module is loaded."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, ClassVar, Protocol, get_args, get_origin

from harness.errors import BadRequest
from harness.text.parsing import abbreviate

_WORDS = {
    Callable: "a function",
    frozenset: "a frozenset of strings",
    Mapping: "a mapping",
    Sequence: "a list or tuple",
    bool: "True or False",
    str: "a string",
    float: "a number",
    NoneType: "None",
}


class Declaration:
    """Named attributes. Unknown or missing ones, and ones of a wrong type, are refused."""

    def __new__(cls, *_: Any, **declared: Any) -> "Declaration":
        """Raise BadRequest for an attribute that is unknown or missing."""
        attributes = {each.name: each for each in _fields(cls)}
        for name in declared:
            if name not in attributes:
                raise BadRequest(f"{cls.__name__} has no {name!r}{nearest_name(name, attributes)}")
        for name, each in attributes.items():
            if name not in declared and each.default is each.default_factory is MISSING:
                raise BadRequest(f"{cls.__name__} lacks {name!r}, which has no default")
        return super().__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """Return the attributes, so that copies and pickles are declared as this one was."""
        return (), {each.name: getattr(self, each.name) for each in _fields(type(self))}

    def __post_init__(self) -> None:
        """Raise BadRequest for an attribute of a wrong type."""
        refuse_wrong_types(self)


class Plugin(Declaration):
    """The declaration of one plug-in."""

    MAIN: ClassVar[str]  # the function that every plug-in of its kind has
    RETURNS: ClassVar[Any] = Any  # what that function returns: a type, or a Protocol

    def defaulted(self) -> list[str]:
        """Return the names of the attributes that have their default values."""
        return [
            each.name
            for each in _fields(type(self))
            if (each.default is not MISSING and getattr(self, each.name) is each.default)
            or (each.default_factory is not MISSING and not getattr(self, each.name))
        ]


@dataclass(frozen=True, kw_only=True)
class ImporterPlugin(Plugin):
    """What the module of an importer declares as `PLUGIN`: `read` returns a recording.

    description  the sentence for lists, if it is not the module's
    """

    MAIN: ClassVar[str] = "read"

    read: Callable[[Path], Any]
    description: str = ""


def refuse_wrong_types(declared: Any) -> None:
    """Raise BadRequest for an attribute of a wrong type."""
    for each in _fields(type(declared)):
        value = getattr(declared, each.name)
        if not _fits(value, each.type):
            raise BadRequest(
                f"{each.name!r} of {type(declared).__name__} must be {_type_text(each.type)}, not"
                f" {value!r}"
            )


def missing_members(value: object, protocol: type, also: Collection[str] = ()) -> list[str]:
    """Return the names of the Protocol's attributes and methods, and of those in `also`, that the
    value lacks, sorted."""
    return sorted(name for name in _members(protocol).union(also) if not hasattr(value, name))


@cache
def _members(protocol: type) -> frozenset[str]:
    """Return the names of the Protocol's attributes and methods."""
    names: set[str] = set()
    for cls in protocol.__mro__:
        if getattr(cls, "_is_protocol", False) and cls is not Protocol:
            names |= {name for name, each in vars(cls).items() if isinstance(each, FunctionType)}
            names |= inspect.get_annotations(cls).keys()
    return frozenset(names - {"__init__", "__subclasshook__"})  # of the Protocol class itself


def why_unfit(value: object, type_: Any) -> str:
    """Return why a value is not what a plug-in's function must return: the end of a sentence that
    begins with the function's name; empty if it is."""
    if getattr(type_, "_is_protocol", False):
        missing = missing_members(value, type_)
        kind = type(value).__name__
        lacks = ", ".join(map(repr, missing))
        return f"returned {_a(kind)}, which lacks {lacks} of {type_.__name__}" if missing else ""
    if _fits(value, type_):
        return ""
    wanted = _type_text(type_).removeprefix("of type ")
    return f"must return {wanted}, not {abbreviate(repr(value))}"


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOUaeiou' else 'a'} {noun}"


def nearest_name(name: str, names: Mapping[str, Any] | Sequence[str]) -> str:
    """Return the end of an error message: the nearest right spelling, and all names."""
    close = get_close_matches(name.lower(), names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"{hint}; it has: {', '.join(sorted(names))}"


def _type_text(type_: Any) -> str:
    kind = get_origin(type_) or type_
    if kind is UnionType:
        return " or ".join(map(_type_text, get_args(type_)))
    if issubclass(kind, Enum):
        return f"one of {', '.join(f'{kind.__name__}.{one.name}' for one in kind)}"
    return _WORDS.get(kind) or f"of type {kind.__name__}"


def _fields(cls: Any) -> Sequence[Field[Any]]:
    return fields(cls)


def _fits(value: object, type_: Any) -> bool:
    """Whether the value has the type, as far as can be checked cheaply."""
    origin, inner = get_origin(type_) or type_, get_args(type_)
    if origin is UnionType:
        return any(_fits(value, one) for one in inner)
    if origin is Any or (origin is float and type(value) is int):
        return True
    if not isinstance(value, origin) or (isinstance(value, str) and origin is Sequence):
        return False
    if origin is frozenset:
        return all(isinstance(item, str) for item in value)
    if origin is Mapping and inner[1] is not Any:
        return all(isinstance(item, inner[1]) for item in value.values())
    return True

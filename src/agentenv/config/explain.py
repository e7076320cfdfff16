"""Turns what pydantic found wrong into sentences: what, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from agentenv.config.problems import Key, Problem
from agentenv.naming import near

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "model_type": "a section of keys and values",
    "tuple_type": "a list",
}


def explain(error: ValidationError, model: type[BaseModel]) -> Iterator[Problem]:
    """One problem, still without file and line, for each error that validating `model` gave."""
    for details in error.errors():
        key = tuple(part for part in details["loc"] if part not in ("(number)", "(schedule)"))
        yield _problem(details, key, model)


def _problem(details: ErrorDetails, key: Key, model: type[BaseModel]) -> Problem:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(key, model)
    example = _example(key, model)
    if kind == "missing":
        return Problem("is missing.", key=key, remedy=example)
    if kind == "value_error":
        what, _, right = str(context["error"]).partition("; ")
        return Problem(f"{what}.", key=key, remedy=_sentence(right) if right else example)
    if kind == "literal_error":
        return _not_one_of(value, key, model)
    if kind in _EXPECTED:
        remedy = _quoted(kind, value, key) or example or _keys_of(key, model)
        return Problem(f"must be {_EXPECTED[kind]}, not {_shown(value)}.", key=key, remedy=remedy)
    if kind == "string_too_short":
        return Problem("must not be empty.", key=key, remedy=example)
    message = details["msg"].removeprefix("Input should be ")
    return Problem(f"must be {message}, not {_shown(value)}.", key=key, remedy=example)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith("?") else ".")


def _keys_of(key: Key, model: type[BaseModel]) -> str | None:
    section = _section(key, model)
    return f"Its keys are {', '.join(section.model_fields)}." if section else None


def _shown(value: object) -> str:
    """A value as its writer knows it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, BaseModel)):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = f"the text {value!r}" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(kind: str, value: object, key: Key) -> str | None:
    """For a number where text is wanted (an environment variable, say): write it in quotes."""
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        shown = str(value).lower() if isinstance(value, bool) else value
        return f'Put it in quotes: {key[-1]}: "{shown}".'
    return None


def _unknown(key: Key, model: type[BaseModel]) -> Problem:
    section = _section(key[:-1], model)
    known = list(section.model_fields) if section else []
    name = str(key[-1])
    if home := _home_of(name, model):
        return Problem("is no known key here.", key=key, remedy=f"It belongs under `{home}`.")
    if hint := near(name, known):
        return Problem("is no known key.", key=key, remedy=f"Did you mean `{hint}`?")
    return Problem("is no known key.", key=key, remedy=f"Known here: {', '.join(known)}.")


def _not_one_of(value: object, key: Key, model: type[BaseModel]) -> Problem:
    info = _field(key, model)
    options: list[str] = list(getattr(info.annotation, "__args__", ())) if info else []
    hint = near(str(value), options)
    what = f"must be one of {', '.join(options)}, not {_shown(value)}."
    return Problem(what, key=key, remedy=f"Did you mean `{hint}`?" if hint else f"Write one of {', '.join(options)}.")


def _example(key: Key, model: type[BaseModel]) -> str | None:
    info = _field(key, model)
    if info is None or not (examples := _examples(info)):
        return None
    names = [part for part in key if isinstance(part, str)]
    return f"Write for example `{names[-1]}: {_yaml(examples[0])}`."


def _examples(info: FieldInfo) -> list[Any]:
    """A field's examples; pydantic keeps those of an optional field on the inner type."""
    if info.examples:
        return list(info.examples)
    for argument in getattr(info.annotation, "__args__", ()):
        for meta in getattr(argument, "__metadata__", ()):
            if isinstance(meta, FieldInfo) and meta.examples:
                return list(meta.examples)
    return []


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(item)}" for name, item in value.items()) + "}"
    return str(value)


def sections_of(annotation: object) -> Iterator[type[BaseModel]]:
    """The models that a field's type is made of, through unions, tuples and annotations."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from sections_of(argument)


def _section(key: Key, model: type[BaseModel]) -> type[BaseModel] | None:
    """The model at `key`."""
    for part in key:
        if isinstance(part, int):
            continue
        info = model.model_fields.get(part)
        found = next(sections_of(info.annotation), None) if info else None
        if found is None:
            return None
        model = found
    return model


def _field(key: Key, model: type[BaseModel]) -> FieldInfo | None:
    """The field at `key`, or the nearest enclosing one for an element of a list or mapping."""
    for depth in range(len(key), 0, -1):
        if isinstance(key[depth - 1], str):
            section = _section(key[: depth - 1], model)
            info = section.model_fields.get(str(key[depth - 1])) if section else None
            if info is not None:
                return info
    return None


def _home_of(name: str, model: type[BaseModel], path: str = "") -> str | None:
    """The dotted section in which a key called `name` is known, nearest to the top first."""
    for field, info in model.model_fields.items():
        where = f"{path}.{field}" if path else field
        for section in sections_of(info.annotation):
            if name in section.model_fields:
                return where
            if found := _home_of(name, section, where):
                return found
    return None

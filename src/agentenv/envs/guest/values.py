"""Values as JSON: infos, options, and observations of spaces whose size varies.

Plain JSON stays as it is. What JSON lacks is an object with exactly one key, a tag:

    {"__array__": {"dtype": "<f4", "shape": [2], "base64": "…"}}   a numpy array or (shape []) a numpy scalar, C order, little endian
    {"__bytes__": "base64"}        {"__tuple__": [...]}       {"__float__": "nan" | "inf" | "-inf"}
    {"__dict__": [[key, value], …]}   a mapping whose keys are not all strings, or that could be taken for a tag
    {"__repr__": "…"}              something that has no meaning outside its process; it arrives as that text

Nothing is ever unpickled, and arrays of Python objects are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import sys
from typing import Any, Final

DTYPE: Final = re.compile(r"[<|](?:[biuf?][1248]?|c(?:8|16)|[SU][0-9]{1,6})")
MAX_DEPTH: Final = 64
_TAG: Final = re.compile(r"__[a-z]+__")


def dumps(value: Any) -> bytes:
    """`value` as JSON in UTF-8. Raises ValueError when it is nested deeper than `MAX_DEPTH`."""
    return _WRITE(_encode(value, 0)).encode()


def loads(data: bytes | bytearray | memoryview) -> Any:
    """The value that `dumps` wrote. Raises ValueError for anything that it cannot have written."""
    try:
        plain = _READ(str(data, "utf-8"))
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {MAX_DEPTH}") from None
    return _decode(plain, 0)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; write {{'__float__': …}}")


_WRITE: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_READ: Final = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _encode(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"a value is nested deeper than {MAX_DEPTH}")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"__float__": str(float(value))}
    if isinstance(value, dict):
        return _encode_mapping(value, depth)
    if isinstance(value, list):
        return [_encode(item, depth + 1) for item in value]
    if isinstance(value, tuple):
        return {"__tuple__": [_encode(item, depth + 1) for item in value]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"__bytes__": base64.b64encode(value).decode()}
    return _encode_array(value)


def _encode_mapping(value: dict[Any, Any], depth: int) -> Any:
    tag_like = len(value) == 1 and all(isinstance(key, str) and _TAG.fullmatch(key) for key in value)
    if tag_like or not all(isinstance(key, str) for key in value):
        return {"__dict__": [[_encode(key, depth + 1), _encode(item, depth + 1)] for key, item in value.items()]}
    return {key: _encode(item, depth + 1) for key, item in value.items()}


def _encode_array(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return {"__repr__": repr(value)}
    array = numpy.asarray(value)
    array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    if not DTYPE.fullmatch(array.dtype.str):
        return {"__repr__": repr(value)}
    content = base64.b64encode(array.tobytes()).decode()
    scalar = {"scalar": True} if isinstance(value, numpy.generic) else {}
    return {"__array__": {"dtype": array.dtype.str, "shape": list(array.shape), "base64": content, **scalar}}


def _decode(value: Any, depth: int) -> Any:
    if depth > 2 * MAX_DEPTH:
        raise ValueError(f"a value is nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        return [_decode(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        [(key, content)] = value.items()
        if _TAG.fullmatch(key):
            return _decode_tag(key, content, depth)
    return {key: _decode(item, depth + 1) for key, item in value.items()}


def _decode_tag(tag: str, content: Any, depth: int) -> Any:
    if tag == "__float__" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "__tuple__" and isinstance(content, list):
        return tuple(_decode(item, depth + 1) for item in content)
    if tag == "__bytes__" and isinstance(content, str):
        return _from_base64(content)
    if tag == "__repr__" and isinstance(content, str):
        return content
    if tag == "__array__" and isinstance(content, dict):
        return decode_array(content)
    if tag == "__dict__" and isinstance(content, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in content):
        try:
            return {_decode(key, depth + 1): _decode(item, depth + 1) for key, item in content}
        except TypeError:
            raise ValueError("a mapping has a key that cannot be one") from None
    raise ValueError(f"{tag} does not stand for a {type(content).__name__} like the one given")


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise ValueError(f"bad base64: {problem}") from None


def decode_array(content: dict[str, Any]) -> Any:
    """The array of an `__array__`, a writable copy. Raises ValueError when type, shape and content do not fit each other."""
    dtype, shape = content.get("dtype"), content.get("shape")
    if not isinstance(dtype, str) or not DTYPE.fullmatch(dtype):
        raise ValueError(f"an array has the type {dtype!r}; numbers, booleans and fixed-size text are allowed, little endian")
    if not is_shape(shape):
        raise ValueError(f"an array has the shape {shape!r}; at most 32 sizes of 0 and more are allowed")
    data = _from_base64(str(content.get("base64")))
    try:
        import numpy
    except ImportError:
        raise ValueError("an array arrived where numpy is not installed") from None
    try:
        array = numpy.frombuffer(data, dtype=dtype).reshape(shape).copy()
    except (TypeError, ValueError) as problem:
        raise ValueError(f"an array of type {dtype} and shape {shape} does not fit its {len(data)} bytes: {problem}") from None
    return array[()] if content.get("scalar") is True and array.ndim == 0 else array


def is_shape(shape: Any) -> bool:
    """Whether `shape` is a list of at most 32 sizes, none negative, whose product stays small enough to be real."""
    if not isinstance(shape, list) or len(shape) > 32 or not all(type(size) is int and 0 <= size <= 1 << 31 for size in shape):
        return False
    return math.prod(shape) <= 1 << 31

"""Writes the synchronous face of the sandbox from the asynchronous one: `python scripts/derive_sync.py [--check]`.

Each public class `AsyncX` of the listed modules becomes a class `X` with the same methods, signatures and docstrings, whose bodies hand the
call to the loop in the background. The result is checked in, so that people can read it and type checkers know it; a test holds it current.
"""

from __future__ import annotations

import argparse
import ast
import copy
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "agentenv" / "sandbox"
TARGET = PACKAGE / "sync.py"
MODULES = ("command_handle", "commands", "files", "watch", "pty", "shell", "sandbox")

HEADER = '''"""The synchronous face of the sandbox. Derived by scripts/derive_sync.py from the asynchronous one: change that one.

Every method does what the one of the same name of the `Async` class does, in the loop in the background, and waits for it.
"""

'''
LIFT = '''
def _lift(value: Any, loop: LoopThread) -> Any:
    """What the asynchronous face gave back, with its handles and iterators turned into synchronous ones."""
    face = _FACES.get(type(value))
    if face is not None:
        return face(value, loop)
    if isinstance(value, list):
        return [_lift(item, loop) for item in value]
    if isinstance(value, AsyncIterator):
        return loop.iterate(value)
    return value
'''
RENAMED_METHODS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
RENAMED_TYPES = {"AsyncIterator": "Iterator", "AsyncIterable": "Iterable"}


def rename(text: str) -> str:
    """Type names and prose of the asynchronous face as the synchronous one has them."""
    # There is no node to choose: the synchronous sandboxes live in that of their own loop.
    text = re.sub(r"\s+`node`: the owner; by default this process's own\.", "", text)
    text = re.sub(r"\bAsync(Sandbox|Commands|CommandHandle|Output|Files|WatchHandle|Pty|Shell)\b", r"\1", text)
    for before, after in RENAMED_TYPES.items():
        text = re.sub(rf"\b{before}\b", after, text)
    return text.replace("async with await ", "with ").replace("async with", "with").replace("async for", "for").replace("await ", "")


def public_classes(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Async")]


def methods(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public methods, `with` and `for` included, in the order of the source."""
    found = []
    for node in cls.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (not node.name.startswith("_") or node.name in RENAMED_METHODS):
            found.append(node)
    return found


def decorators(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {node.id for node in function.decorator_list if isinstance(node, ast.Name)}


def is_callback(argument: ast.arg) -> bool:
    return argument.arg.startswith("on_")


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The call's arguments, passing each parameter on; callbacks go to a thread, so that they may use the sandbox themselves."""
    spec = function.args

    def value(argument: ast.arg) -> str:
        return f"in_thread({argument.arg})" if is_callback(argument) else argument.arg

    passed = [value(argument) for argument in [*spec.posonlyargs, *spec.args][1:]]
    passed += [f"*{spec.vararg.arg}"] if spec.vararg else []
    passed += [f"{argument.arg}={value(argument)}" for argument in spec.kwonlyargs]
    return ", ".join(passed)


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`def name(parameters) -> type:` of the synchronous method."""
    returns = f" -> {rename(ast.unparse(function.returns))}" if function.returns else ""
    name = RENAMED_METHODS.get(function.name, function.name)
    return f"def {name}({rename(ast.unparse(function.args))}){returns}:"


def without_node(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The synchronous sandboxes live in the node of their own loop, so that there is none to choose."""
    function = copy.deepcopy(function)
    spec = function.args
    kept = [(arg, default) for arg, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if arg.arg != "node"]
    spec.kwonlyargs, spec.kw_defaults = [arg for arg, _ in kept], [default for _, default in kept]
    return function


def body(function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, marks: set[str], *, overloaded: bool) -> str:
    """The one statement of a method."""
    name, passed = function.name, arguments(function)
    returns = rename(ast.unparse(function.returns)) if function.returns else "None"
    if name == "__aenter__":
        return "return self"
    if name == "__aiter__" and returns == owner.removeprefix("Async"):
        return "return self"
    if name == "__anext__":
        return "try:\n    return self._loop.run(self._face.__anext__())\nexcept StopAsyncIteration:\n    raise StopIteration from None"
    if "classmethod" in marks:
        return "loop = runtime().background\n" + answer(f"loop.run({owner}.{name}({passed}))", returns, "loop")
    if "property" in marks:
        return answer(f"self._face.{name}", returns)
    if isinstance(function, ast.FunctionDef):
        return answer(f"self._loop.call(self._face.{name}{', ' if passed else ''}{passed})", returns)
    # A type checker cannot match the union of all variants' parameters with any one variant.
    face = 'cast("Any", self._face)' if overloaded else "self._face"
    return answer(f"self._loop.run({face}.{name}({passed}))", returns)


def answer(call: str, returns: str, loop: str = "self._loop") -> str:
    """What a method does with the result of `call`: nothing more, unless a handle or an iterator is in it."""
    if returns == "None":
        return call
    if re.search(r"\b(Sandbox|Commands|CommandHandle|Output|Files|WatchHandle|Pty|Shell|Iterator|Forked)\b", returns):
        return f"return cast({returns!r}, _lift({call}, {loop}))"
    return f"return {call}"


def derive_method(function: ast.FunctionDef | ast.AsyncFunctionDef, owner: str, *, overloaded: bool) -> str:
    marks = decorators(function)
    kept = [mark for mark in ("property", "classmethod", "overload") if mark in marks]
    lines = [f"@{mark}" for mark in kept]
    if "classmethod" in marks:
        function = without_node(function)
    head = signature(function)
    if "overload" in marks:
        return "\n".join([*lines, f"{head} ..."])
    lines.append(head)
    if doc := ast.get_docstring(function):
        lines += indent(f'"""{rename(doc)}' + ('\n"""' if "\n" in doc else '"""'))
    lines += indent(body(function, owner, marks, overloaded=overloaded))
    return "\n".join(lines)


def indent(text: str) -> list[str]:
    return [f"    {line}" if line else "" for line in text.splitlines()]


def derive_class(cls: ast.ClassDef) -> str:
    name = cls.name.removeprefix("Async")
    lines = [f"class {name}:"]
    if doc := ast.get_docstring(cls):
        lines += indent(f'"""{rename(doc)}' + ('\n"""' if "\n" in doc else '"""'))
    lines += ["", *indent(f"def __init__(self, face: {cls.name}, loop: LoopThread) -> None:\n    self._face = face\n    self._loop = loop")]
    variants = {function.name for function in methods(cls) if "overload" in decorators(function)}
    for function in methods(cls):
        lines += ["", *indent(derive_method(function, cls.name, overloaded=function.name in variants))]
    return "\n".join(lines)


def imports(trees: dict[str, ast.Module], used: str) -> str:
    """The imports of all modules whose names the derived text uses, the asynchronous classes, and what the bodies need."""
    lines = {
        "from agentenv.sandbox.loop_thread import LoopThread, in_thread",
        "from agentenv.sandbox.runtime import runtime",
        "from collections.abc import AsyncIterator, Iterator",
        "from typing import Any, cast",
    }
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Import):
                lines |= {f"import {alias.name}" for alias in node.names if re.search(rf"\b{alias.name}\.", used)}
            elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
                for alias in node.names:
                    known = RENAMED_TYPES.get(alias.name, alias.name)
                    if re.search(rf"\b{known}\b", used):
                        lines.add(f"from {node.module} import {known}")
        lines |= {f"from agentenv.sandbox.{module} import {cls.name}" for cls in public_classes(tree)}
    return "\n".join(sorted(lines))


def derive() -> str:
    """The whole text of the synchronous module."""
    trees = {module: ast.parse((PACKAGE / f"{module}.py").read_text()) for module in MODULES}
    classes = [cls for tree in trees.values() for cls in public_classes(tree)]
    derived = "\n\n\n".join(derive_class(cls) for cls in classes)
    forked = 'Forked = list["Sandbox | AgentEnvError"]\n"""What a fork gives: for each child its handle, or why it did not start."""\n'
    faces = "_FACES: dict[type, Callable[[Any, LoopThread], Any]] = {\n"
    faces += "".join(f"    {cls.name}: {cls.name.removeprefix('Async')},\n" for cls in classes) + "}\n"
    used = derived + forked + faces
    text = HEADER + "from __future__ import annotations\n\nfrom collections.abc import Callable\n" + imports(trees, used)
    text += f"\n\n\n{derived}\n\n\n{forked}\n\n{faces}\n{LIFT}"
    return formatted(text)


def formatted(text: str) -> str:
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the checked-in file is not current")
    text = derive()
    if parser.parse_args().check:
        if TARGET.read_text() != text:
            print(f"{TARGET.relative_to(ROOT)} is not current; run scripts/derive_sync.py")
            return 1
        return 0
    TARGET.write_text(text)
    print(f"wrote {TARGET.relative_to(ROOT)}, {len(text.splitlines())} lines")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

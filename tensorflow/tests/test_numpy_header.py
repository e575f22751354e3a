"""The declarations for ctypes are those of the header."""

import ctypes
import re
from pathlib import Path

import pytest

pycparser = pytest.importorskip("pycparser")
from pycparser import c_ast  # noqa: E402

from grpcxx import Code, Reason, _c, _library, _tensors, client  # noqa: E402

HEADER = Path(__file__).resolve().parents[2] / "capi/include/grpcxx.h"

pytestmark = pytest.mark.skipif(not HEADER.is_file(), reason=f"{HEADER} is not here: not a checkout")

PLAIN = {
    "bool": ctypes.c_bool,
    "int32_t": ctypes.c_int32,
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
}
STRUCTURES = {
    "grpcxx_text": _c.Text,
    "grpcxx_call_options": _c.CallOptions,
    "grpcxx_graph_call": _c.GraphCall,
}
CALLBACKS = {
    "grpcxx_release_fn": _c.RELEASE,
    "grpcxx_log_fn": _c.LOG,
    "grpcxx_counter_fn": _c.COUNTER,
    "grpcxx_tensors_fn": _c.TENSORS,
    "grpcxx_function_fn": _c.FUNCTION,
    "grpcxx_store_fn": _c.STORE,
    "grpcxx_fact_fn": _c.FACT,
    "grpcxx_variable_fn": _c.VARIABLE,
}


@pytest.fixture(scope="module")
def header():
    """Functions, structures, callbacks and constants of the header, by name."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    text = re.sub(r'extern "C" \{', "", text)
    text = re.sub(r"#ifdef __cplusplus\n\}\n#endif", "", text)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    types = "\n".join(f"typedef int {name};" for name in PLAIN)
    return Declarations(pycparser.CParser().parse(types + text))


class Declarations(c_ast.NodeVisitor):
    def __init__(self, tree):
        self.functions, self.structures, self.callbacks, self.enumerations = {}, {}, {}, {}
        self.visit(tree)

    def visit_Decl(self, node):
        if isinstance(node.type, c_ast.FuncDecl):
            self.functions[node.name] = node.type

    def visit_Typedef(self, node):
        kind = node.type
        if isinstance(kind, c_ast.PtrDecl) and isinstance(kind.type, c_ast.FuncDecl):
            self.callbacks[node.name] = kind.type
        elif isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.Struct) and kind.type.decls:
            self.structures[node.name] = kind.type.decls
        elif isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.Enum):
            values = {
                enumerator.name.removeprefix("GRPCXX_"): int(enumerator.value.value)
                for enumerator in kind.type.values.enumerators
            }
            self.enumerations[node.name] = values


def allowed(node):
    """The ctypes types that a C type may be declared as."""
    if isinstance(node, c_ast.PtrDecl):
        target = node.type
        if isinstance(target, c_ast.FuncDecl):
            return {ctypes.c_void_p, _c.FREE}
        if isinstance(target, c_ast.PtrDecl):
            inner = target.type
            is_text = isinstance(inner, c_ast.TypeDecl) and inner.type.names == ["char"]
            return {ctypes.POINTER(ctypes.c_char_p if is_text else ctypes.c_void_p)}
        name = target.type.names[0]
        if name == "char":
            return {ctypes.c_char_p, ctypes.c_void_p}
        if name in STRUCTURES:
            return {ctypes.POINTER(STRUCTURES[name])}
        if name in PLAIN:
            return {ctypes.POINTER(PLAIN[name])}
        return {ctypes.c_void_p}
    name = node.type.names[0]
    if name == "void":
        return {None}
    if name in CALLBACKS:
        return {CALLBACKS[name]}
    if name in STRUCTURES:
        return {STRUCTURES[name]}
    # Callbacks that this package does not use.
    return {PLAIN.get(name, ctypes.c_void_p)}


def parameters(function):
    listed = [parameter.type for parameter in function.args.params]
    is_empty = len(listed) == 1 and allowed(listed[0]) == {None}
    return [] if is_empty else listed


@pytest.mark.parametrize("name", sorted(_c.FUNCTIONS))
def test_function_is_declared_as_in_the_header(header, name):
    assert name in header.functions
    function = header.functions[name]
    result, arguments = _c.FUNCTIONS[name]
    assert result in allowed(function.type)
    expected = parameters(function)
    assert len(arguments) == len(expected)
    for place, (argument, parameter) in enumerate(zip(arguments, expected)):
        assert argument in allowed(parameter), f"argument {place}"


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_structure_has_the_fields_of_the_header(header, name):
    declared = STRUCTURES[name]._fields_
    expected = header.structures[name]
    assert [field for field, _ in declared] == [field.name for field in expected]
    for (field, kind), node in zip(declared, expected):
        assert kind in allowed(node.type), field


@pytest.mark.parametrize("name", sorted(CALLBACKS))
def test_callback_has_the_arguments_of_the_header(header, name):
    callback = CALLBACKS[name]
    expected = parameters(header.callbacks[name])
    assert callback._restype_ in allowed(header.callbacks[name].type)
    assert len(callback._argtypes_) == len(expected)
    for argument, parameter in zip(callback._argtypes_, expected):
        assert argument in allowed(parameter)


def test_constants_are_those_of_the_header(header):
    assert {code.name: int(code) for code in Code} == header.enumerations["grpcxx_code"]
    reasons = {f"REASON_{reason.name}": int(reason) for reason in Reason}
    assert reasons == header.enumerations["grpcxx_reason"]
    dtypes = header.enumerations["grpcxx_dtype"]
    for number, dtype in _tensors.DTYPES.items():
        assert dtypes[dtype.name.upper()] == number
    assert dtypes["STRING"] == _tensors.STRING
    assert dtypes["BFLOAT16"] == _tensors.BFLOAT16
    assert header.enumerations["grpcxx_method"]["GET_STATUS"] == client.GET_STATUS
    assert set(header.enumerations["grpcxx_log_level"].values()) == set(_library.LEVELS)
    assert f"GRPCXX_ABI_VERSION {_c.ABI_VERSION}\n" in HEADER.read_text()

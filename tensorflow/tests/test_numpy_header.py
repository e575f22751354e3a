"""The constants of the package are those of the C header, which the same library offers."""

import re
from pathlib import Path

import pytest

pycparser = pytest.importorskip("pycparser")
from pycparser import c_ast  # noqa: E402

from grpcxx import Code, Reason, _library  # noqa: E402

HEADER = Path(__file__).resolve().parents[2] / "capi/include/grpcxx.h"

pytestmark = pytest.mark.skipif(not HEADER.is_file(), reason=f"{HEADER} is not here: not a checkout")

PLAIN = ("bool", "int32_t", "uint16_t", "uint32_t", "int64_t", "uint64_t", "size_t")


@pytest.fixture(scope="module")
def header():
    """The enumerations of the header, by name."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    text = re.sub(r'extern "C" \{', "", text)
    text = re.sub(r"#ifdef __cplusplus\n\}\n#endif", "", text)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    types = "\n".join(f"typedef int {name};" for name in PLAIN)
    return Declarations(pycparser.CParser().parse(types + text))


class Declarations(c_ast.NodeVisitor):
    def __init__(self, tree):
        self.enumerations = {}
        self.visit(tree)

    def visit_Typedef(self, node):
        kind = node.type
        if isinstance(kind, c_ast.TypeDecl) and isinstance(kind.type, c_ast.Enum):
            values = {
                enumerator.name.removeprefix("GRPCXX_"): int(enumerator.value.value)
                for enumerator in kind.type.values.enumerators
            }
            self.enumerations[node.name] = values


def test_constants_are_those_of_the_header(header):
    assert {code.name: int(code) for code in Code} == header.enumerations["grpcxx_code"]
    reasons = {f"REASON_{reason.name}": int(reason) for reason in Reason}
    assert reasons == header.enumerations["grpcxx_reason"]
    dtypes = header.enumerations["grpcxx_dtype"]
    for name, number in _library.native.dtype_names():
        assert dtypes[name.upper()] == number
    assert set(header.enumerations["grpcxx_log_level"].values()) == set(_library.LEVELS)

"""Faults in the types of the public names."""

from mutants.mutant import faults_in

CHECKED = ("tests/test_types.py::test_a_type_checker_finds_what_is_wrong_and_nothing_else",)
TABLES = ("tests/test_types.py::test_the_types_say_what_the_tables_say",)

MUTANTS = (
    *faults_in(
        "rnnkit/network.py",
        ("a GRU has cell states for type checkers", "class GRU(BaseNetwork[None]):", "class GRU(BaseNetwork[Any]):",
         CHECKED),
        ("an RNN takes any nonlinearity", 'nonlinearity: Literal["tanh", "relu"]', "nonlinearity: str", CHECKED),
    ),
    *faults_in(
        "rnnkit/types.py",
        ("options of all networks are those of each", "class LSTMOptions(RNNOptions, total=False):",
         "class LSTMOptions(GRUOptions, total=False):", CHECKED),
        ("x may have its batch first", "    batch_first: Literal[False]\n", "    batch_first: bool\n", CHECKED),
        ("a dtype is any text", "DType: TypeAlias = HostDType |", "DType: TypeAlias = str |", CHECKED),
        ("a mode is missing in the types", '"lstm", "gru"]', '"lstm"]', TABLES),
        ("an option of the GRU is missing in the types", "    reset_after: bool\n", "", TABLES),
    ),
)  # fmt: skip

"""Faults in the cells that are shipped, their activations, and the ONNX operators that compute them."""

from mutants.mutant import faults_in

SHIPPED, RANGE = "tests/test_shipped_cells.py::test_", "tests/test_slstm_range.py::test_"
EQUATIONS, TWIN = f"{SHIPPED}the_gradients_of_its_equations", f"{SHIPPED}its_values_are_those_of_the_twin"
HARD = f"{RANGE}it_is_right_wherever_its_exponents_are[lets nothing in-none-exp-float64]"
OVERFLOW = f"{RANGE}no_exponent_overflows[100.0-exp-float32]"
APART, ACTIVATION = f"{SHIPPED}activations_tell_cells_apart", f"{SHIPPED}what_is_no_activation_is_refused"
SAVED, RULES = f"{SHIPPED}a_network_with_activations_is_saved_and_loaded", "tests/test_cell_rules.py"
ONNX = "tests/test_onnx_cells.py::test_"
RUNTIME = f"{ONNX}an_operator_gives_what_onnx_runtime_gives"
FILE = f"{ONNX}onnx_runtime_gives_the_results_of_a_network_in_a_file[peephole-{{'num_layers': 2}}]"
BACK, REFUSED = f"{ONNX}there_and_back_gives_the_same_bits", f"{ONNX}what_no_cell_has_is_refused_by_name"
DOORS = f"{ONNX}a_door_to_what_lacks_the_cell_names_it"


def of(test, kind, size="stack", dtype="float64"):
    return f"{test}[{kind}-{size}-{dtype}]"


def equations(kind):
    return f"{EQUATIONS}[{kind}-0]"


def runtime(kind):
    return f"{RUNTIME}[{kind}-bidirectional]"


_CELLS = (
    *faults_in(
        "kernels/cells/peephole_lstm.py",
        ("the output gate does not look at the cell", "fma(peephole_o, c, o)", "o", (of(TWIN, "peephole"),)),
        ("a peephole passes nothing back", "fma(dc, f, fma(di, peephole_i, df * peephole_f))", "dc * f",
         (equations("peephole"),)),
        ("the peephole of o passes nothing back", "fma(do, peephole_o, dc)", "dc", (equations("peephole"),)),
        ("the gradient of a peephole is that of its gate", "di * c_prev, df * c_prev", "di * c_prev, df",
         (equations("peephole"),)),
        ("a slope is that of another activation", "dc * i * slope(self.candidate, g)", "dc * i * slope(self.gate, g)",
         (equations("peephole-hard"),)),
    ),
    *faults_in(
        "kernels/cells/coupled_lstm.py",
        ("the coupled gate forgets what it takes in", "fma(1 - i, c_prev, i * g)", "fma(i, c_prev, i * g)",
         (of(TWIN, "coupled"),)),
        ("the coupled gate has one of its gradients", "dc * (g - c_prev)", "dc * g", (equations("coupled"),)),
    ),
    *faults_in(
        "kernels/cells/activated_lstm.py",
        ("the activation of the output is that of the candidate", "return o * value(self.output, c)",
         "return o * value(self.candidate, c)", (of(TWIN, "activated"),)),
        ("an activated gate has another rounding", "fma(f, c_prev, i * g)", "f * c_prev + i * g",
         (f"{SHIPPED}with_the_usual_activations_it_has_the_bits_of_the_built_in_lstm",)),
    ),
    *faults_in(
        "kernels/cells/minimal_gated_unit.py",
        ("what is forgotten and what is kept change places", "fma(f, n, (1 - f) * h_prev)", "fma(1 - f, n, f * h_prev)",
         (of(TWIN, "minimal"),)),
        ("the gate has no gradient from the product", "fma(dforgotten, h_prev, df)", "df", (equations("minimal"),)),
    ),
    *faults_in(
        "kernels/cells/indrnn.py",
        ("IndRNN has R", 'gates=[Gate("a", multiplies=None)]', 'gates="a"', (of(TWIN, "indrnn"),)),
        ("the vector of IndRNN is drawn as R is", 'Vector("u", 0, 1)', 'Vector("u")',
         (f"{SHIPPED}the_blocks_of_their_weights",)),
        ("the gradient of the vector is that of h", "da * h_prev, da * u", "da * h_prev, da", (equations("indrnn"),)),
    ),
    *faults_in(
        "kernels/cells/mingru.py",
        ("minGRU bounds its candidate", "fma(z, n, (1", "fma(z, n / (1 + abs(n)), (1", (of(TWIN, "mingru"),)),
        ("minGRU keeps what it should let in", "fma(z, n, (1 - z) * h_prev)", "fma(1 - z, n, z * h_prev)",
         (of(TWIN, "mingru"),)),
    ),
    *faults_in(
        "kernels/cells/slstm.py",
        ("there is no stabiliser", "m = i if i > f or n_prev == 0 else f", "m = 0 * f", (OVERFLOW,)),
        ("the first step divides nothing by nothing", " or n_prev == 0", "", (HARD,)),
        ("what is not there yet overflows", "exp(0 if f > m else f - m)", "exp(f - m)", (HARD,)),
        ("the stabiliser passes nothing back", "by_m = dm - di - df", "by_m = dm", (equations("slstm"),)),
        ("the stabiliser is always that of the forget gate", "(di + by_m, df) if i == 1 else (di, df + by_m)",
         "(di, df + by_m)", (equations("slstm"),)),
        ("the forget gate has no slope", "df * slope,", "df,", (equations("slstm-sigmoid"),)),
        ("the logarithm of a sigmoid is a softplus", "-softplus(-f)", "-softplus(f)", (of(TWIN, "slstm-sigmoid"),)),
        ("the normaliser passes nothing back", "fma(-q, mean, dn)", "dn", (equations("slstm"),)),
    ),
)
_ACTIVATIONS = (
    *faults_in(
        "kernels/cells/activations.py",
        ("a hard sigmoid is no bound", "clip(fma(self.alpha, x, self.beta), 0, 1)", "fma(self.alpha, x, self.beta)",
         (of(TWIN, "peephole-hard"),)),
        ("a hard sigmoid has a slope everywhere", "0 if y <= 0 or y >= 1 else self.alpha", "self.alpha",
         (equations("peephole-hard"),)),
        ("the slope of a scaled tanh forgets its scale", "self.alpha * self.beta * (1", "self.beta * (1",
         (equations("peephole-hard"),)),
        ("the slope of a softsign is not squared", "return one * one", "return one", (equations("peephole-hard"),)),
        ("the slope of an Elu is its value", "y + self.alpha if", "y if", (equations("coupled-elu"),)),
        ("the slope of a leaky ReLU does not leak", "return self.alpha if y <= 0 else 1", "return 0 if y <= 0 else 1",
         (equations("coupled-elu"),)),
        ("the slope of a softplus is its exponential", "return 2 * t / (1 + t)", "return 2 * t / (1 - t)",
         (equations("activated"),)),
        ("a softplus has a term too few", "1 / 5), 1 / 3), 1)", "1 / 5), 0), 1)", (of(TWIN, "activated"),)),
        ("a softplus overflows", "u = exp(-abs(x))", "u = exp(x)", (of(TWIN, "activated"),)),
        ("a thresholded ReLU thresholds nothing", "0 if x <= self.alpha else x", "0 if x <= 0 else x",
         (of(TWIN, "activated"),)),
        ("activations without numbers are equal", "return told_apart(kind)", "return kind", (APART,)),
        ("an alpha may hide the slope", "POSITIVE = LeakyRelu, ThresholdedRelu, ScaledTanh, Elu", "POSITIVE = ()",
         (ACTIVATION,)),
    ),
    *faults_in(
        "rnnkit/modes.py",
        ("what is no activation is taken", "if not isinstance(value, Activation):", "if False:", (ACTIVATION,)),
        ("the numbers of an activation are float64", "type(one)(*map(real, one))", "one",
         (of(TWIN, "peephole-hard", dtype="float32"),)),
        ("a file does not say which activation", "[type(parameter).__name__, *parameter] if", "list(parameter) if",
         (SAVED,)),
    ),
    *faults_in(
        "rnnkit/cpu/layer.py",
        ("code is taken for that of other activations", "(type(cell), *map(type, cell))", "(type(cell),)", (APART,)),
    ),
)
_ONNX = (
    *faults_in(
        "rnnkit/interop/onnx_operators.py",
        ("the peepholes of ONNX are in the order of ours", "peephole_i peephole_o peephole_f",
         "peephole_i peephole_f peephole_o", (runtime("peephole"),)),
        ("coupled gates are not written", '{"input_forget": 1} if', "{} if", (BACK,)),
        ("activations are not written", "if mode != type(mode)():", "if False:", (BACK,)),
        ("the case of an activation matters", "known.get(name.lower(), name)", "name", (runtime("hard"),)),
        ("both directions have the numbers of the first", "if found != found[: len(own)] * num_directions:",
         "if False:", (REFUSED,)),
        ("an activation may have no number of its own", "if len(given) or unclear:", "if len(given):", (REFUSED,)),
        ("some activations may have no number", "if len(given) or unclear:", "if unclear:", (REFUSED,)),
        ("peepholes of coupled gates are left out", "if peepholes and input_forget:", "if False:", (REFUSED,)),
        ("the usual activations make a cell of its own", 'return "lstm" if mode == ActivatedLSTM() else mode',
         "return mode", (runtime("usual"),)),
    ),
    *faults_in(
        "rnnkit/interop/onnx.py",
        ("peepholes are forgotten", '"P" in arrays and bool(arrays["P"].any())', "False", (runtime("peephole"),)),
        ("a gate that is not there has rows of others", "np.zeros_like(block[: desc.hidden_size])",
         "np.ones_like(block[: desc.hidden_size])", (BACK,)),
    ),
    *faults_in(
        "rnnkit/interop/onnx_model.py",
        ("a file has no peepholes", '            inputs.append(f"P_{layer}")\n', "", (FILE,)),
    ),
    *faults_in(
        "rnnkit/interop/networks.py",
        ("a door takes any cell", "if not isinstance(net.desc.mode, (str, *cells)):", "if False:", (DOORS,)),
    ),
)

MUTANTS = (*_CELLS, *_ACTIVATIONS, *_ONNX)

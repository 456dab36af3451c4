"""Faults in the language model: its readout, its classes, its scores and what it writes."""

from mutants.mutant import faults_in

FILES = "tests/test_language_model_"
MODEL, SCORING, SAMPLING = (f"{FILES}{name}.py::test_" for name in ("model", "scoring", "sampling"))
PARTS, GRADIENT, DROPPED = (
    f"{MODEL}parts_of_a_batch_add_up_to_its_gradient",
    f"{MODEL}gradient_equals_central_differences",
    f"{MODEL}dropout_acts_on_what_is_read_out_and_the_same_seed_drops_the_same",
)
LOADED = f"{MODEL}load_refuses_other_members"
COUNTED, READ = f"{SCORING}every_byte_counts_once", f"{SCORING}bits_equal_a_step_by_step_reading"
BESIDE = f"{SCORING}a_model_that_may_not_learn_reads_rows_side_by_side"
TOP_P = f"{SAMPLING}top_p_draws_from_the_fewest_bytes_that_have_the_share"

MUTANTS = (
    *faults_in(
        "rnnkit/language_model/readout.py",
        (
            "the readout keeps the last part's gradient",
            "_weight_gradient += self",
            "_weight_gradient[:] = self",
            (PARTS,),
        ),
        ("the loss of a part has a mean of its own", "count=count, out=", "out=", (PARTS,)),
        (
            "what was dropped has a gradient",
            "                dy[rows] *= kept\n",
            "                pass\n",
            (GRADIENT,),
        ),
        ("all blocks drop the same", "(seed, number)) if dropout", "(seed, 0)) if dropout", (DROPPED,)),
        ("what is kept of the outputs is not scaled", "    kept /= 1 - dropout\n", "", (DROPPED,)),
    ),
    *faults_in(
        "rnnkit/language_model/model.py",
        ("rows of the embedding forget the last part", "sums[values] += ", "sums[values] = ", (PARTS,)),
        (
            "bytes outside of the alphabet are told apart for nothing",
            "return nats + self._nats_of_others(wanted), State",
            "return nats, State",
            (f"{MODEL}loss_is_the_sum_over_the_bytes_and_the_state_goes_on",),
        ),
        (
            "bytes outside of the alphabet are written",
            "[:, :-1]",
            "[:, :]",
            (f"{SAMPLING}only_bytes_of_the_alphabet_are_written",),
        ),
        ("a letter may stand twice", "alphabet[1:] <= alphabet", "alphabet[1:] < alphabet", (LOADED,)),
        ("an alphabet may have any size", " or not 1 <= shape[0] <= 256", "", (LOADED,)),
        ("a letter may be any number", "dtype != np.uint8 or ", "", (LOADED,)),
    ),
    *faults_in(
        "rnnkit/language_model/scoring.py",
        ("bytes of the context count", "(steps >= 0) & ", "", (COUNTED,)),
        ("rows have read nothing", "range(-context, row_size", "range(0, row_size", (READ,)),
        ("a model that goes on learning drops", "replace(model.desc, dropout=0.0)", "model.desc", (BESIDE,)),
        (
            "rows that learn begin at a NUL byte",
            "np.broadcast_to(read[-1], (1,",
            "np.broadcast_to(read[-1] * 0, (1,",
            (BESIDE,),
        ),
        ("what fills no row is free", "(nats + model.nats(y[:, 0], rest))", "nats", (BESIDE,)),
        (
            "the model itself goes on learning",
            "    parameters.flat[:] = model.parameters.flat\n",
            "    parameters = model.parameters\n",
            (f"{SCORING}a_model_learns_from_what_it_has_read",),
        ),
        (
            "gradients of all steps add up",
            "        model.gradient.buffer.fill(0)\n",
            "",
            (f"{SCORING}each_byte_is_predicted_before_it_is_learned_from",),
        ),
        (
            "NUL bytes stand in front of a text",
            'before = (b"\\n" *',
            'before = (b"\\0" *',
            (f"{SCORING}line_ends_stand_in_front_of_a_text",),
        ),
    ),
    *faults_in(
        "rnnkit/language_model/sampling.py",
        ("top-p does not know the temperature", "scores / temperature, top_p", "scores, top_p", (TOP_P,)),
        ("top-p leaves out the byte that reaches it", "np.cumsum(shares) - shares", "np.cumsum(shares)", (TOP_P,)),
    ),
    *faults_in(
        "rnnkit/language_model/corpus.py",
        (
            "nothing is kept for validation",
            "held_out // VALIDATION_SHARE",
            "0",
            (f"{FILES}corpus.py::test_split_keeps_every_byte_in_one_part",),
        ),
    ),
)

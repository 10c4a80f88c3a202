"""Recurrent layers as one operator: every step of every row meets both matrices."""

from ridgeline.cost.formulas import Call, Tensor, Work, work_of

T = Tensor
STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
X = T((STEPS, BATCH, WIDTH))
GATES = 4 * HIDDEN
WEIGHTS = [T((GATES, WIDTH)), T((GATES, HIDDEN)), T((GATES,)), T((GATES,))]
MACS = STEPS * BATCH * GATES * (WIDTH + HIDDEN)


def test_an_onednn_layer() -> None:
    work = work_of(Call("aten::mkldnn_rnn_layer", (X, *WEIGHTS)))
    assert work is not None
    assert work.macs == MACS
    assert work.other_flops == STEPS * BATCH * HIDDEN * 10


def test_the_backward_of_an_onednn_layer_is_twice_its_forward() -> None:
    work = work_of(Call("aten::mkldnn_rnn_layer_backward", (X, *WEIGHTS)))
    assert work is not None
    assert work.macs == 2 * MACS


def test_a_cudnn_call_holds_all_its_layers() -> None:
    second = [T((GATES, HIDDEN)), T((GATES, HIDDEN)), T((GATES,)), T((GATES,))]
    work = work_of(Call("aten::_cudnn_rnn", (X, [*WEIGHTS, *second], 4)))
    assert work is not None
    assert work.macs == MACS + STEPS * BATCH * GATES * 2 * HIDDEN


def test_a_packed_sequence_has_as_many_rows_as_there_is_data() -> None:
    work = work_of(Call("aten::_cudnn_rnn", (T((11, WIDTH)), WEIGHTS, 4)))
    assert work is not None
    assert work.macs == 11 * GATES * (WIDTH + HIDDEN)


def test_backward_without_weight_gradients_pays_once() -> None:
    names = ("input", "weight", "output_mask")
    for mask, times in (([True, True, True, True], 2), ([True, True, True, False], 1)):
        work = work_of(Call("aten::_cudnn_rnn_backward", (X, WEIGHTS, mask), names))
        assert work is not None
        assert work.macs == times * MACS


def test_a_fused_cell_has_no_products_of_its_own() -> None:
    gates = T((BATCH, GATES))
    work = work_of(Call("aten::_thnn_fused_lstm_cell", (gates, gates, T((BATCH, HIDDEN)))))
    assert work == Work(other_flops=3 * gates.numel)

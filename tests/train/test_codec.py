"""State is written the same way each time, comes back as it was, and never runs anything."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tessera.train import codec
from tessera.train.codec import StateError

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.binary(max_size=16)
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def written(state: Any) -> bytes:
    file = io.BytesIO()
    codec.write_state(state, file)
    return file.getvalue()


def test_a_state_with_arrays_comes_back() -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = {
        "weights": weights,
        "steps": [np.int64(3), (1, None)],
        7: b"raw",
        "none": np.array(0.5),
    }

    found = codec.read_state(io.BytesIO(written(state)))

    assert found["weights"].dtype == np.float32
    assert np.array_equal(found["weights"], weights)
    assert found["steps"] == [3, (1, None)]
    assert found[7] == b"raw"
    assert found["none"].shape == ()


@given(STATES)
def test_every_state_comes_back_as_it_was(state: Any) -> None:
    content = written(state)

    assert codec.read_state(io.BytesIO(content)) == state
    assert written(state) == content


@given(
    arrays.arrays(
        st.sampled_from([np.float64, np.float16, np.int8, np.uint32, np.bool_, np.complex64]),
        arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
    )
)
def test_every_array_comes_back_with_its_bits(array: np.ndarray[Any, Any]) -> None:
    found = codec.read_state(io.BytesIO(written([array])))[0]

    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_end_in_another_error(noise: bytes, cut: int) -> None:
    content = written({"weights": np.zeros(4), "text": "x", "raw": b"abc"})

    for bad in (noise, codec.MAGIC + noise, content[:cut], content[:30] + noise + content[40:]):
        try:
            codec.read_state(io.BytesIO(bad))
        except StateError:
            pass


def test_a_file_that_is_cut_short_is_told() -> None:
    content = written({"weights": np.zeros(4)})

    with pytest.raises(StateError, match="truncated"):
        codec.read_state(io.BytesIO(content[:-1]))


def test_what_cannot_be_written_is_named_by_its_place() -> None:
    with pytest.raises(StateError, match=r"state\['a'\]\[1\] is a object"):
        written({"a": [1, object()]})
    with pytest.raises(StateError, match="ndarray"):
        written(np.array([object()]))


@pytest.mark.torch
def test_tensors_come_back_with_their_bits() -> None:
    torch = pytest.importorskip("torch")
    state = {
        "half": torch.randn(3, 2).to(torch.bfloat16),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "empty": torch.empty(0, 3),
        "flag": torch.tensor(True),
    }

    found = codec.read_state(io.BytesIO(written(state)))

    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    with pytest.raises(StateError, match="Tensor"):
        written(torch.eye(2).to_sparse())

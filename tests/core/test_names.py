"""Names of collectives and dtypes, as torch's recorder, torch's profiler and NCCL spell them."""

import pytest

from simlib.core.formats.names import DTYPES, dtype_of, kind_of, word_of_dtype

SPELT = {
    "all_reduce": "allreduce all_reduce allreduce_coalesced all_reduce_sparse AllReduce",
    "all_gather": "_allgather_base _all_gather_base ALLGATHER_coalesced all_gather_v AllGather "
    "allgather_into_tensor_coalesced all_gather_into_tensor_coalesced all_gather_single",
    "reduce_scatter": "_reduce_scatter_base reduce_scatter_tensor_coalesced reduce_scatter_single "
    "REDUCE_SCATTER_coalesced reduce_scatter_v ReduceScatter",
    "all_to_all": "all_to_all_single all_to_all_v_single all_to_allv AlltoAll AllToAll",
    "broadcast": "_broadcast_oop Broadcast Bcast",
    "reduce": "_reduce_oop Reduce",
    "barrier": "barrier all_reduce_barrier",
    "recv": "recv Recv",
    None: "coalesced wait init split",
}


@pytest.mark.parametrize("kind", SPELT)
def test_a_collective_is_known_by_each_of_its_names(kind):
    assert {word: kind_of(word) for word in SPELT[kind].split()} == dict.fromkeys(
        SPELT[kind].split(), kind
    )


def test_dtypes_are_known_by_torchs_and_the_compilers_names():
    assert all(dtype_of(word_of_dtype(name))[0] == name for name in [*DTYPES, "float8_e5m2"])
    assert [dtype_of(word) for word in ("c10::BFloat16", "long int", "unsigned char")] == [
        ("bfloat16", 2), ("int64", 8), ("uint8", 1),
    ]  # fmt: skip
    assert dtype_of("Undefined") is None and dtype_of("tensor") is None

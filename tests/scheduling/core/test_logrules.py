"""Rules about logs: patterns mean what Python's mean, in linear time, and see every line."""

import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.logrules import (
    DEFAULT_RULES,
    LineScanner,
    LogAction,
    LogRuleSpec,
    Pattern,
    PatternError,
)

ATOMS = st.sampled_from(["a", "b", "A", ".", "[ab]", "[^a]", r"\d", r"\s", r"\.", "ab", "é", "1"])


def _grow(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}"])).map(
            lambda two: f"(?:{two[0]}){two[1]}"
        ),
    )


PATTERNS = st.tuples(
    st.sampled_from(["", "(?i)", "^", "(?i)^"]),
    st.recursive(ATOMS, _grow, max_leaves=6),
    st.sampled_from(["", "$"]),
).map("".join)


@settings(max_examples=150)
@given(PATTERNS, st.text("abAé1. x", max_size=12))
def test_a_pattern_matches_where_pythons_does(pattern, line):
    ours, data = Pattern(pattern), line.encode()

    # Bytes, since a negated class reads one byte here and one character there.
    theirs = re.search(pattern.encode(), data) is not None

    assert ours.matches(data) is theirs
    if theirs:
        assert ours.may_match(data, data.lower())


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", "(a*)*b", "(x+x+)+y", "(.*a){20}", "(a?){50}a{50}"]
)
def test_hostile_patterns_take_linear_time(pattern):
    Pattern(pattern).matches(b"a" * 4096 + b"!")


@pytest.mark.parametrize(
    "pattern",
    ["", "(", ")", "a)", "[", "[b-a]", "a**", "*a", "a{2,1}", "a{1000}", "a{,2}", r"\1", r"\b",
     "(?=a)", "(?P<n>a)", "a^b", "x" * 501, "(" * 30 + "a" + ")" * 30, "((a{100}){100}){100}",
     "^a|b", "\\", "[é]"],
)  # fmt: skip
def test_what_is_no_pattern_here_is_refused_in_words(pattern):
    with pytest.raises(PatternError, match=r"\w"):
        Pattern(pattern)


ECC, LOST, OOM = (rule.name for rule in DEFAULT_RULES)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        # PyTorch, NCCL and TensorFlow of a device whose memory has failed
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", ECC),
        ("node-a:71:92 [0] NCCL WARN Cuda failure 'uncorrectable ECC error encountered'", ECC),
        ("cuInit: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered", ECC),
        ("Search for `cudaErrorECCUncorrectable' in the documentation of CUDA.", ECC),
        ("uncorrectable ECC errors: 0", None),
        ("GPU 0: no uncorrectable ECC error, 3 correctable ECC errors", None),
        ("retry_on_CUDA_ERROR_ECC_UNCORRECTABLE=false", None),
        # the driver, NVML and nvidia-smi of one that does not answer
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", LOST),
        ("[  42.1] NVRM: Xid (PCI:0000:3b:00): 94, pid=812, name=python, Contained", LOST),
        ("NVRM: Xid (0000:03:00): 48, An uncorrectable double bit error", LOST),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", LOST),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot", LOST),
        ('{"error": "GPU is lost"}', LOST),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=1, Graphics Exception: 48, TPC 0", None),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=9, Ch 00000048, MMU Fault: 63, x", None),
        ("12 % of the time of each GPU is lost to waiting for input", None),
        ("idle: GPU is lost to waiting for input", None),
        # PyTorch of several versions, NCCL, CUDA, JAX and TensorFlow where memory ends
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", OOM),
        ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.2 GiB", OOM),
        ("torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed memory.", OOM),
        ("torch.AcceleratorError: CUDA error: out of memory", OOM),
        ("node-a:71:92 [0] init.cc:1 NCCL WARN Cuda failure 2 'out of memory'", OOM),
        ("failed to allocate 14.7G from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", OOM),
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8", OOM),
        ("OOM when allocating tensor with shape[64,1024] and type float on GPU:0", OOM),
        ("ROOM when allocating tensor", None),
        ("handle_CUDA_ERROR_OUT_OF_MEMORY_by=raise", None),
        ("    except torch.OutOfMemoryError:", None),
        ("    except mytorch.OutOfMemoryError: raise", None),
        ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 2 GiB. Not a failure", None),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", None),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 7.0", None),
        # what an ended peer or network leaves in the logs of all others
        ("NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0", None),
        ("node-a:71:92 NCCL WARN socketProgress: Connection closed by remote peer", None),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", None),
        ("RuntimeError: NCCL error: unhandled cuda error, NCCL version 2.21.5", None),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=48,", None),
        ("loss 0.3", None),
    ],
)
def test_the_rules_of_every_installation_know_their_lines(line, name):
    hits = scanner(*DEFAULT_RULES).feed(line.encode() + b"\n", 0)

    assert [hit.rule.name for hit in hits] == ([name] if name else [])


def rule(pattern="boom", name="it") -> LogRuleSpec:
    return LogRuleSpec(name=name, pattern=pattern, action=LogAction.LABEL)


def scanner(*rules: LogRuleSpec) -> LineScanner:
    return LineScanner([(one, Pattern(one.pattern)) for one in rules])


@given(st.lists(st.integers(1, 9), max_size=8))
def test_lines_are_found_wherever_the_log_is_cut(cuts):
    text = b"first\nsecond boom here\nthird boom\n"
    look, at, hits = scanner(rule()), 0, []
    for size in [*cuts, len(text)]:
        piece = text[at : at + size]
        hits += look.feed(piece, at)
        at += len(piece)

    ((hit),) = hits
    assert (hit.offset, hit.line) == (6, "second boom here")


def test_the_last_line_needs_no_end_and_after_a_gap_lines_begin_anew():
    look = scanner(rule())

    assert look.feed(b"bo", 0) == ()
    assert look.feed(b"om", 100) == ()
    assert look.finish() == ()
    look.feed(b"boom", 104)
    (hit,) = look.finish()
    assert hit.offset == 104


def test_a_line_without_end_is_looked_at_as_far_as_is_bearable():
    look = scanner(rule())

    hits = look.feed(b"boom" + b"x" * 10_000, 0)

    assert [hit.offset for hit in hits] == [0]
    assert hits[0].line.startswith("boomxxx")
    assert len(hits[0].line) == 200


def test_a_pattern_that_takes_too_long_in_a_log_is_given_up_there_and_others_go_on():
    letters = random.Random(7)
    lines = b"".join(bytes(letters.choices(b"ab", k=1_000)) + b"\n" for _ in range(8))
    look = scanner(rule("a" + "[ab]{100}" * 15, "slow"), rule("boom", "quick"))

    hits = [*look.feed(lines, 0), *look.feed(b"boom\n" + lines, len(lines))]

    assert [(hit.rule.name, hit.given_up) for hit in hits] == [("slow", True), ("quick", False)]


def test_threads_that_share_a_pattern_find_what_one_alone_finds():
    letters = random.Random(3)
    lines = [bytes(letters.choices(b"aab", k=200)) for _ in range(40)]
    # More states than are kept, so that some are forgotten all the time.
    shared = Pattern("a[ab]{12}c")

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(lambda: [shared.matches(line) for line in lines]) for _ in "1234"]

    assert [one.result() for one in found] == [[False] * len(lines)] * 4

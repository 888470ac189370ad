"""Log rules: patterns mean what Python's mean, in linear time, and every line is searched."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.watching.log_rules import (
    DEFAULT_RULES,
    LineScanner,
    LogAction,
    LogRuleSpec,
    Pattern,
    PatternError,
    RuleHit,
)

ATOMS = st.sampled_from(
    ["a", "b", "A", ".", "[ab]", "[^a]", "[é1]", r"\d", r"\s", r"\.", r"\w", r"\W", r"\b", "^",
     "$", "ab", "é", "1"]
)  # fmt: skip


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


@settings(max_examples=300)
@given(PATTERNS, st.lists(st.text("abAé1. x", max_size=12), min_size=1, max_size=4))
def test_a_pattern_matches_in_the_lines_in_which_pythons_does(pattern, lines):
    text = "\n".join(lines).encode()

    at = Pattern(pattern).find(text)

    found = [n for n, line in enumerate(lines) if re.search(pattern, line, re.ASCII)]
    assert (at if at is None else text.count(b"\n", 0, at)) == (found[0] if found else None)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("^a|b", "cb"), ("[é]", "é"), ("é{2}$", "éé"), ("(?P<n>a)b", "ab"), (r"\bOOM\b", "an OOM."),
     ('{"error"', '{"error": 1}'), ("(" * 30 + "a" + ")" * 30, "a"), ("a(?i:b)", "aB"),
     ("a??b", "b"), ("a{1000}", "a" * 1000)],
)  # fmt: skip
def test_patterns_of_python_that_re2_shares_match(pattern, line):
    assert re.search(pattern, line)
    assert Pattern(pattern).find(line.encode()) is not None


@pytest.mark.parametrize(("pattern", "line"), [(r"a\sb", "a\vb"), (r"^\w$", "é"), (r"^\d$", "٣")])
def test_classes_hold_ascii_characters_alone_and_no_vertical_tab(pattern, line):
    assert re.search(pattern, line)
    assert Pattern(pattern).find(line.encode()) is None


# The last one has thousands of states at once, so that RE2 cannot cache them.
HOSTILE = ["(a+)+$", "(a|a)*b", "(a*)*b", "(x+x+)+y", "(.*a){20}", "(a?){50}a{50}",
           "((a?){30}b){20}x", "a" + "[ab]{100}" * 15]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE)
def test_hostile_patterns_take_linear_time(pattern):
    letters = random.Random(7)
    text = b"a" * 4096 + b"!\n" + bytes(letters.choices(b"ab", k=128 << 10))
    compiled, started = Pattern(pattern), time.thread_time()

    compiled.find(text)

    assert time.thread_time() - started < 10  # about 0.5 s at most; an exponential one never ends


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("", "1 to 500 characters"), ("x" * 501, "1 to 500 characters"), ("(", "not closed"),
     (")", "no opening"), ("a)", "no opening"), ("[", "[ is not closed"), ("[b-a]", "b-a"),
     ("a**", "repeats a repetition"), ("*a", "* has nothing before it"), ("a{2,1}", "{2,1}"),
     ("a{1001}", "at most 1,000"), ("((a{100}){100}){100}", "at most 1,000"),
     ("a{,2}", "write {0,2} instead of {,2}"), (r"\1", r"\1 is not supported"),
     (r"\q", r"\q is not supported"), ("(?=a)", "use (?:"), ("(?<=a)b", "not supported"),
     ("\\", "nothing follows"), (r"\Aa", "use ^"), (r"a\Z", "use $"), (r"a\z", "use $"),
     (r"\C", "not supported"), (r"\Qa.b\E", "not supported"), ("(?s)a", "only flag is i"),
     ("(?-m:^a)", "only flag is i"), (r"(\pL{20}){40}", "too large"), ("\ud800", "surrogate")],
)  # fmt: skip
def test_an_invalid_pattern_is_refused_with_the_reason(pattern, reason):
    with pytest.raises(PatternError) as refused:
        Pattern(pattern)

    assert reason in str(refused.value)


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
    return LineScanner([(one, Pattern(one.pattern)) for one in rules], clock=time.thread_time)


@given(st.lists(st.integers(1, 9), max_size=8))
def test_lines_are_found_wherever_the_log_is_cut(cuts):
    text = b"first\nsecond boom here\nthird boom\n"
    look, at = scanner(rule()), 0
    hits: list[RuleHit] = []
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


def test_bytes_that_are_not_utf8_and_returns_at_the_end_of_a_line_do_not_hide_a_match():
    look = scanner(rule(r"^.*\Wboom$"))

    (hit,) = look.feed(b"one\r\n\xff\xc3 boom\r\r\nthree\n", 100)

    assert (hit.offset, hit.line) == (105, "\ufffd\ufffd boom")


def test_what_lies_beyond_the_bytes_searched_of_a_line_does_not_match():
    look = scanner(rule("boom"), rule("x$", "end"))

    hits = look.feed(b"x" * 4096 + b"boom\n", 0)

    assert [hit.rule.name for hit in hits] == ["end"]


def test_a_pattern_that_takes_too_long_in_a_log_is_given_up_there_and_others_go_on():
    letters = random.Random(7)
    piece = b"".join(bytes(letters.choices(b"ab", k=1_000)) + b"\n" for _ in range(128))
    look, at = scanner(rule(HOSTILE[-1] + "c", "slow"), rule("boom", "quick")), 0
    hits: list[RuleHit] = []

    for _ in range(16):
        hits += look.feed(piece, at)
        at += len(piece)
    hits += look.feed(b"boom\n", at)

    assert [(hit.rule.name, hit.given_up) for hit in hits] == [("slow", True), ("quick", False)]
    assert 0 < hits[0].offset <= at


def test_a_rule_has_more_time_in_a_longer_log():
    ticks = iter(range(100))
    # Each search takes a second of this clock; ten million bytes allow for one.
    look = LineScanner([(rule(), Pattern("boom"))], clock=lambda: float(next(ticks)))

    assert look.feed(b"." * 10_000_000 + b"\n", 0) == ()
    (hit,) = look.feed(b"short\n", 10_000_001)
    assert hit.given_up
    assert look.feed(b"boom\n", 10_000_007) == ()


def test_threads_that_share_a_pattern_find_what_one_alone_finds():
    letters = random.Random(3)
    lines = [bytes(letters.choices(b"aab", k=200)) for _ in range(40)]
    # More states than are cached, so that some are dropped all the time.
    shared = Pattern("a[ab]{12}c")

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(lambda: [shared.find(line) for line in lines]) for _ in "1234"]

    assert [one.result() for one in found] == [[None] * len(lines)] * 4

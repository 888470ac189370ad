"""Short phrases for causes and states."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import Template, fixed

WORDS: Final[Mapping[str, Template]] = {
    "failure-user": fixed("the job's own error"),
    "failure-resource-limit": fixed("a resource limit"),
    "failure-node": fixed("a node failure"),
    "failure-image": fixed("the image"),
    "failure-timeout": fixed("the time limit"),
    "failure-platform": fixed("the platform"),
    "cause-guarantee": fixed("another virtual cluster reclaimed its cells"),
    "cause-priority": fixed("a job of higher priority"),
    "cause-borrowed": fixed("borrowed devices were reclaimed"),
    "cause-policy": fixed("its policy"),
    "cause-resize": fixed("another size"),
    "cause-move": fixed("a move"),
    "cause-slower": fixed("a size that made it slower"),
    "cause-drain": fixed("a drain"),
}

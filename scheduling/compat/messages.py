"""Message table shared by all importers, and the base class of their tables."""

from collections.abc import Mapping
from typing import Final

from tessera.messages import BASE, Parameter, Sentence, Table, Template, fixed


class Messages(Table):
    """The message templates of an importer by code, including the shared ones."""

    def phrase(self, code: str, /, **params: Parameter) -> Sentence:
        """Return the message of a code with its English text.

        Raises:
            KeyError: the table does not contain the code.
            TypeError: the parameters do not match the template.
        """
        return self.sentence(self.message(code, **params))


_SHARED: Final[Mapping[str, Template]] = {
    "import-not-a-range": fixed("is not a number or a range."),
    "import-write-range": fixed("Write 2 or 2..8."),
    "import-range-descends": fixed("has a minimum above its maximum."),
    "import-write-smaller-first": fixed("Write the smaller number first."),
    "import-not-a-size": fixed("is not a valid size."),
    "import-write-size": fixed("Write 16GB or 512MB."),
    "import-size-out-of-range": fixed("must be between 1MB and 64TB."),
    "import-not-a-duration": fixed("is not a valid duration."),
    "import-write-duration": fixed("Write seconds, or a duration such as 15m, 2h or 1d."),
    "import-no-rule-for-cluster": fixed(
        "No import rule maps %(kind)s %(name)s to a virtual cluster."
    ),
    "import-cluster-chosen": fixed(
        "is not set; the job uses %(cluster)s. Set it to use another one."
    ),
    "import-cluster-differs": fixed("maps to virtual cluster %(cluster)s; the job uses %(used)s."),
    "import-no-rule-for-priority": fixed("No import rule maps %(kind)s %(name)s to a priority."),
    "import-no-rule-for-priority-name": fixed(
        "No import rule maps priority %(name)s to a priority class."
    ),
    "import-json-constant": fixed("contains %(name)s, which is not valid JSON."),
    "import-write-number": fixed("Write a number."),
    "import-shorten": fixed("Shorten the document."),
    "import-too-deep": fixed("is nested too deeply."),
    "import-nest-less": fixed("Use at most %(most)s levels."),
    "import-number-too-long": fixed("contains a number with too many digits."),
    "import-write-smaller": fixed("Write a smaller number."),
    "import-not-utf8": fixed("is not valid UTF-8 at byte %(byte)s."),
    "import-save-utf8": fixed("Save the document as UTF-8."),
    "import-not-json": fixed(
        "is not valid JSON: %(problem)s at line %(line)s, column %(column)s."
    ),
    "import-correct-json": fixed("Correct it, or send YAML as application/yaml."),
    "import-too-many-values": fixed("has too many values: at most %(most)s."),
    "import-send-smaller": fixed("Send a smaller document."),
    "import-key-twice": fixed("has the key %(key)s twice."),
    "import-keep-one": fixed("Remove one."),
    "import-correct-yaml": fixed("Correct it. Quote texts that contain : or #."),
    "import-not-yaml": fixed("is not valid YAML: %(problem)s."),
    "import-remove-control": fixed("Remove control characters, or quote the text."),
    "import-yaml-character": fixed(
        "is not valid YAML: it contains a character that YAML does not allow."
    ),
    "import-remove-character": fixed("Remove that character."),
    "import-remove-tag": fixed("Remove the tag."),
    "import-write-text-key": fixed("Write a string as the key."),
    "import-write-out": fixed("Write the value instead of the alias."),
    "import-write-key-out": fixed("Write the key instead of the alias."),
    "import-write-keys-out": fixed("Write the keys instead of the merge key (<<)."),
    "import-use-fewer-values": fixed("Use fewer values, or send JSON."),
    "import-send-one": fixed("Send one document."),
    "import-label-invalid": fixed("A label value is a string of at most 63 characters."),
    "import-path-on-every-node": fixed("must exist on every node."),
    "import-no-command": fixed("has no command."),
    "import-give": fixed("Give %(key)s."),
    "import-write-command": fixed("Write a shell command."),
    "import-no-blocks": fixed("Devices are allocated one by one."),
    "import-node-address": fixed("Nodes use the address that the portal uses."),
    "import-write-letters-dash": fixed("Write letters, digits and -."),
    "import-no-gpu": fixed(
        "requests no GPU; the job reserves 1 device. Jobs without devices need CPUs, memory and "
        "a node with CPUs that belong to no device."
    ),
    "import-shm": fixed("/dev/shm has the node's default size."),  # noqa: S108  no path of ours
    "import-disk": fixed("Disk space is not reserved."),
    "import-gpu-not-given": fixed(
        "is not set; the job reserves 1 device, because each role has at least 1."
    ),
    "import-no-node-choice": fixed("Jobs cannot choose nodes; use a pinned cell."),
    "import-volumes": fixed("Only named volumes are mounted, as the storages of the same names."),
    "import-mount": fixed("Jobs cannot have this mount point; it is not mounted."),
    "import-storage": fixed("It becomes storage %(name)s, which an admin must have defined."),
    "import-missing": fixed("is missing."),
    "import-ssh-key": fixed("The portal signs in with its own key; add that key to the host."),
    "import-jump-host": fixed(
        "Authorize the key of the portal on the jump host, and confirm its host key."
    ),
    "import-write-jump-host": fixed("Write the host name and the user of the jump host."),
    "import-not-an-address": fixed("is not a valid address."),
    "import-write-address": fixed("Write a host name or an IP address."),
    "import-no-hosts": fixed("lists no host."),
    "import-no-user": fixed("has no user name; add the user name for SSH."),
    "import-not-a-user": fixed("is not a valid user name."),
    "import-write-user": fixed("Write a user name."),
    "import-not-a-port": fixed("is not a valid port."),
    "import-write-port": fixed("Write a number from 1 to 65535."),
    "import-image-kind": fixed(
        "Only images of a registry are supported, not image files or images of a cloud."
    ),
    "import-image-user": fixed("The user of the registry is removed from the name."),
    "import-remove": fixed("Remove it."),
    "import-keep-one-of-them": fixed("Remove one of them."),
    "import-renamed": fixed("was renamed to %(key)s and is read as that."),
    "import-contradicts": fixed("contradicts %(key)s."),
    "import-keep-only": fixed("Use only %(key)s."),
    "import-unknown": fixed("%(key)s is unknown to the importer."),
    "import-write-text": fixed("Write a text."),
    "import-write-list": fixed("Write a list."),
    "import-key-not-text": fixed("is a key that is not a string."),
    "import-quote-key": fixed("Put the key in quotes."),
    "import-write-keys": fixed("Write keys and values."),
    "import-priority": fixed("The priority class of the job sets its priority."),
    "import-mounts": fixed("Node directories are not mounted into containers."),
    "import-no-text": fixed("cannot be written as a string."),
    "import-refer-to-text": fixed("Use a string or a number."),
    "import-value-missing": fixed("The document has no value for it; write the value."),
    "import-server-reference": fixed(
        "The other system's server fills it in; the portal does not."
    ),
    "import-set-twice": fixed("is set twice."),
    "import-not-a-variable": fixed("is not a valid variable."),
    "import-write-variable": fixed("Write NAME=VALUE."),
    "import-use-fewer": fixed("Use fewer."),
    "import-used-twice": fixed("is used twice."),
    "import-rename-one": fixed("Rename one."),
    "import-too-large": fixed("has %(size)s bytes; the limit is %(most)s."),
    "import-not-yaml-at": fixed(
        "is not valid YAML: %(problem)s at line %(line)s, column %(column)s."
    ),
    "import-yaml-documents": fixed(
        "contains more than one document, at line %(line)s, column %(column)s."
    ),
    "import-yaml-tag": fixed("has the tag %(tag)s, at line %(line)s, column %(column)s."),
    "import-yaml-too-deep": fixed("is nested too deeply, at line %(line)s, column %(column)s."),
    "import-yaml-key-not-text": fixed(
        "has a key that is not a string, at line %(line)s, column %(column)s."
    ),
    "import-yaml-alias-undefined": fixed(
        "refers to *%(anchor)s, which is not defined yet, at line %(line)s, column %(column)s."
    ),
    "import-yaml-alias-as-key": fixed(
        "has an alias as a key, at line %(line)s, column %(column)s."
    ),
    "import-yaml-key-twice": fixed(
        "has the key %(key)s twice, at line %(line)s, column %(column)s."
    ),
    "import-yaml-merge": fixed(
        "merges a value that is not an object, at line %(line)s, column %(column)s."
    ),
    "import-yaml-number": fixed(
        "contains a number with too many digits, at line %(line)s, column %(column)s."
    ),
    "import-yaml-too-many-values": fixed(
        "has too many values: at most %(most)s with aliases written out, at line %(line)s, "
        "column %(column)s."
    ),
    "import-unreadable": fixed("unreadable"),
    "import-remark": fixed("%(field)s: %(remark)s"),
    "import-left-out": fixed("Left out: %(field)s: %(remark)s"),
    "import-not-supported": fixed("Not supported: %(field)s: %(remark)s"),
    "yaml-control": fixed("control characters are not allowed"),
    "yaml-colon": fixed("could not find expected ':'"),
    "yaml-bracket": fixed("did not find expected ',' or ']'"),
    "yaml-brace": fixed("did not find expected ',' or '}'"),
    "yaml-dash": fixed("did not find expected '-' indicator"),
    "yaml-key": fixed("did not find expected key"),
    "yaml-tab": fixed("found a tab character that violates indentation"),
    "yaml-token": fixed("found character that cannot start any token"),
    "yaml-end": fixed("found unexpected end of stream"),
    "yaml-escape": fixed("found unknown escape character"),
    "yaml-mapping": fixed("mapping values are not allowed in this context"),
}

SHARED: Final = Messages(BASE, _SHARED)
phrase = SHARED.phrase

"""A decoder that is wrong on purpose: what the fuzzer must find, to be believed elsewhere."""

MAGIC = b"\x7fsdp"


def behind_magic(data: bytes) -> None:
    """Reads past the end behind four bytes, which chance alone would need 2^32 tries for."""
    for place, byte in enumerate(MAGIC):
        if len(data) <= place or data[place] != byte:
            return
    _ = data[len(data)]


TARGETS = {"planted": behind_magic}

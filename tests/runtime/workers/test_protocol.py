"""What a child says is data, whatever a job has written into its socket."""

import struct

import pytest

from chainsched.runtime.workers.protocol import MAX_MESSAGE, Decoder, GarbledMessage, encode, unpack_outcome


def test_messages_come_out_whole_however_they_are_cut():
    sent = [{"began": 1}, {"finished": 1, "outcome": {"state": "completed"}}]
    decoder, data = Decoder(), b"".join(encode(message) for message in sent)
    assert [message for byte in data for message in decoder.feed(bytes([byte]))] == sent


@pytest.mark.parametrize(
    "body",
    [b"", b"malformed_reason", b"\xff\xfe", b"[]", b"7", b"null", b"[" * 200_000, b'{"a":' * 100_000],
    ids=["nothing", "no JSON", "no text", "a list", "a number", "null", "deep lists", "deep objects"],
)
def test_what_is_no_message_is_refused(body):
    with pytest.raises(GarbledMessage):
        list(Decoder().feed(struct.pack("!I", len(body)) + body))


def test_a_message_that_is_too_long_is_refused_before_it_comes():
    with pytest.raises(GarbledMessage, match=str(MAX_MESSAGE + 1)):
        list(Decoder().feed(struct.pack("!I", MAX_MESSAGE + 1)))


@pytest.mark.parametrize("outcome", [7, [], "completed", {}, {"state": "rich"}, {"state": "failed", "odd": 1}])
def test_what_is_no_outcome_is_refused(outcome):
    with pytest.raises(GarbledMessage):
        unpack_outcome(outcome)

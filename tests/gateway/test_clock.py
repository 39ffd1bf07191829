"""Ids of requests and attempts: what RFC 9562 asks of them, at any time and with any luck."""

import random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from gateway.clock import Clock, uuid7_maker


@given(wall_us=st.integers(0, 2**63), seed=st.integers())
def test_an_id_is_a_uuid_of_version_7_that_begins_with_its_millisecond(wall_us, seed):
    clock = Clock(wall_us=lambda: wall_us, monotonic_s=lambda: 0.0)
    new_id = uuid7_maker(clock, random.Random(seed))
    first, second = UUID(bytes=new_id()), UUID(bytes=new_id())
    for one in (first, second):
        assert one.version == 7
        assert one.variant == "specified in RFC 4122"
        assert one.int >> 80 == wall_us // 1000 % 2**48
    assert first != second

"""The databases that other tests stand on."""

from __future__ import annotations

import asyncpg
import pytest
import redis

from tests.support.postgres import PostgresServer, execute, fetch, with_user
from tests.support.redis import RedisServer


def test_each_test_has_an_empty_database_and_no_zone_of_its_own(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE once (id int)")  # refused if another test's was still here
    assert fetch(postgres_url, "SHOW timezone") == [("Asia/Kathmandu",)]


def test_another_test_finds_nothing_of_it(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE once (id int)")


@pytest.mark.slow
def test_a_killed_postgresql_keeps_what_it_has_committed(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    execute(url, "CREATE TABLE kept AS SELECT 7 AS id", "CHECKPOINT")
    postgres_server.kill()
    with pytest.raises(OSError):
        fetch(url, "SELECT 1")
    postgres_server.start()
    assert fetch(url, "SELECT id FROM kept") == [(7,)]


@pytest.mark.slow
def test_a_role_can_be_made_to_need_a_password(postgres_server: PostgresServer) -> None:
    execute(
        postgres_server.url,
        "CREATE ROLE needs_password",
        "CREATE ROLE locked LOGIN PASSWORD 'right' IN ROLE needs_password",
    )
    with pytest.raises(asyncpg.InvalidPasswordError):
        fetch(with_user(postgres_server.url, "locked:wrong"), "SELECT 1")
    assert fetch(with_user(postgres_server.url, "locked:right"), "SELECT 1") == [(1,)]


def test_each_test_has_an_empty_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.set("once", 1, nx=True)


def test_another_test_finds_nothing_in_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.set("once", 1, nx=True)


def test_a_killed_redis_starts_again_empty(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("a", 1)
    redis_server.kill()
    with redis.Redis.from_url(redis_server.url) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    redis_server.start()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.get("a") is None

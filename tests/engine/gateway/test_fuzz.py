"""Sessions of all dialects with histories as real agents change them."""

from tests.engine.gateway.fuzzed_clients import fuzz


async def test_every_sample_of_fuzzed_sessions_trains_once_with_its_ids_and_log_probs() -> None:
    found = await fuzz(300)
    assert found["samples"] >= 300 and found["retries"] and found["discards"] and found["root: history_edited"]

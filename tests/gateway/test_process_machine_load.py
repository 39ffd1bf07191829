"""Metrics of the four servers, as they write them: whether they have requests."""

from __future__ import annotations

import pytest

from gateway.process.machine_load import is_loaded

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} {running}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} {waiting}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 0.25
vllm:iteration_tokens_total_bucket{{le="+Inf",model_name="meta-llama/Llama-3.1-8B-Instruct"}} 9.0
"""
SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{model_name="meta-llama/Llama-3.1-8B-Instruct"}} {running}
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{model_name="meta-llama/Llama-3.1-8B-Instruct"}} {waiting}
# HELP sglang:gen_throughput The generate throughput (token/s)
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{{model_name="meta-llama/Llama-3.1-8B-Instruct"}} 86.5
"""
TGI = """\
# TYPE tgi_request_count counter
tgi_request_count 12
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size {running}
# TYPE tgi_queue_size gauge
tgi_queue_size {waiting}
"""
LLAMA_CPP = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 3469
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing {running}
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred {waiting}
"""
PAGES = {"vLLM": VLLM, "SGLang": SGLANG, "TGI": TGI, "llama.cpp": LLAMA_CPP}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES.keys())
@pytest.mark.parametrize(
    ("running", "waiting", "is_busy"),
    [("0.0", "0", False), ("2.0", "0.0", True), ("0", "1", True), ("NaN", "1e+0", True)],
    ids=["idle", "running", "waiting", "one of them not set"],
)
def test_running_or_waiting_requests_are_load(page: str, running: str, waiting: str, is_busy: bool):
    assert is_loaded(page.format(running=running, waiting=waiting)) is is_busy


SILENT = {
    "nothing": "",
    "no metrics at all": "<html><body>llama.cpp</body></html>",
    "metrics of something else": "process_cpu_seconds_total 12.5\n",
    "a comment alone": "# TYPE tgi_queue_size gauge\n",
    "no number": "tgi_queue_size many\n",
    "never set": "tgi_queue_size NaN\n",
    "no value": "tgi_queue_size\n",
}


@pytest.mark.parametrize("page", SILENT.values(), ids=SILENT.keys())
def test_a_page_that_does_not_say_is_no_idle_server(page: str):
    assert is_loaded(page) is None


TWO = (
    'vllm:num_requests_running{model_name="a",engine="0"} 3 1767225600000\n'
    'vllm:num_requests_running{engine="0", model_name="b\\"c"} 0\n'
)


@pytest.mark.parametrize(
    ("model", "is_busy"), [(None, True), ("a", True), ('b"c', False), ("other", None)]
)
def test_a_model_counts_alone_where_the_server_says_which(model, is_busy):
    assert is_loaded(TWO, model=model) is is_busy


def test_a_server_that_names_no_model_counts_for_each():
    assert is_loaded("llamacpp:requests_processing 1\n", model="llama") is True

"""What of vLLM's metrics tells that its engine works."""

from tunan.gateway.work_signs import work_signs

TEXT = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 7.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:iteration_tokens_total_bucket{engine="0",le="1.0"} 3.0
vllm:iteration_tokens_total_count{engine="0"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
http_requests_total{handler="/metrics"} 8.0
process_cpu_seconds_total 5.1
"""


def test_only_what_the_engine_moves_counts() -> None:
    assert work_signs(TEXT) == (
        'vllm:generation_tokens_total{engine="0",model_name="m"} 7.0',
        'vllm:iteration_tokens_total_count{engine="0"} 9.0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.25',
    )


def test_a_server_of_another_kind_tells_nothing() -> None:
    assert work_signs("requests_total 1\n") == ()

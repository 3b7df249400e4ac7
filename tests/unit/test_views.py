from omni_jobs.views import merge_results


def test_what_two_stages_say_of_one_name_is_kept_side_by_side() -> None:
    thinker = {"text": "海", "usage": {"thinker": {"completion_tokens": 3}}}
    talker = {"usage": {"talker": {"completion_tokens": 9}}}
    assert merge_results([thinker, talker, {}]) == {
        "text": "海",
        "usage": {"thinker": {"completion_tokens": 3}, "talker": {"completion_tokens": 9}},
    }
    assert thinker == {"text": "海", "usage": {"thinker": {"completion_tokens": 3}}}


def test_of_other_values_the_later_counts() -> None:
    assert merge_results([{"a": 1}, {"a": 2}]) == {"a": 2}
    assert merge_results([{"a": {"b": 1}}, {"a": 2}]) == {"a": 2}
    assert merge_results([]) == {}

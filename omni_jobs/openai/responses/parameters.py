"""``RESPONSES``: what becomes of each parameter of a response."""

from typing import Final

from omni_jobs.openai.parameters import ParameterTable, ignored, refused, taken

_AS_IN_CHAT = "as in `POST /v1/chat/completions`"

RESPONSES: Final = ParameterTable(
    "POST /v1/responses",
    (
        taken("model", "the pipeline, which takes text and makes text"),
        taken("input", "a text, or items: messages, `function_call`, `function_call_output`; `reasoning` is ignored"),
        taken("instructions", "the first message, of the role `system`"),
        taken("previous_response_id", "a completed response, whose input and output stand before this input"),
        taken("background", "the answer comes at once, see [responses](#responses)"),
        taken("stream", "the [events](#events-of-a-response)"),
        taken("stream_options", "`include_obfuscation` is ignored"),
        taken("max_output_tokens"),
        taken("temperature"),
        taken("top_p"),
        taken("text", "`format`: `text`, `json_object`, `json_schema`; `verbosity` is ignored"),
        taken("include", "`message.output_text.logprobs`; others are ignored"),
        taken("top_logprobs"),
        taken("tools", "of type `function`"),
        taken("tool_choice", "`none`, `auto`, `required`, or one function"),
        taken("parallel_tool_calls"),
        taken("metadata", "the job's"),
        taken("service_tier", _AS_IN_CHAT),
        taken("modalities", "not OpenAI's: `text`, and `audio` for an artifact of the job"),
        taken("audio", f"not OpenAI's: {_AS_IN_CHAT}"),
        taken("seed", "not OpenAI's: the job's"),
        taken("stages", "not OpenAI's: parameters by stage, as in `POST /v1/jobs`"),
        taken("top_k", f"vLLM's: {_AS_IN_CHAT}"),
        taken("min_p", f"vLLM's: {_AS_IN_CHAT}"),
        taken("repetition_penalty", f"vLLM's: {_AS_IN_CHAT}"),
        taken("min_tokens", f"vLLM's: {_AS_IN_CHAT}"),
        taken("ignore_eos", f"vLLM's: {_AS_IN_CHAT}"),
        ignored("access_programs", "nothing here has programs of access"),
        ignored("background_options", "a job runs in its turn"),
        ignored("image", "no picture is compressed"),
        ignored("max_tool_calls", "it bounds built-in tools, and there are none"),
        ignored("prompt_cache_key", "engines find what they have by themselves"),
        ignored("prompt_cache_options", "engines find what they have by themselves"),
        ignored("prompt_cache_retention", "engines find what they have by themselves"),
        ignored("reasoning", "no pipeline has it as a parameter"),
        ignored("safety_identifier", "the key says who asks"),
        ignored("store", "every job is stored, for the time that the operator set"),
        ignored("truncation", "nothing is cut: a prompt that is too long is refused"),
        ignored("user", "the key says who asks"),
        refused("context_management", "nothing here compacts a context"),
        refused("conversation", "send `previous_response_id`, or all messages"),
        refused("moderation", "nothing here moderates"),
        refused("prompt", "no prompts are kept here: send `input`"),
    ),
)

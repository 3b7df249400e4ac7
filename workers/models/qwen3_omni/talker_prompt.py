"""What the talker's prompt and output are made of, without torch.

The information of a talker's request, with U tokens of the user, A rows of the reply and H the thinker's hidden size:

    user float [U, H]     the thinker's rows of what users said: embeddings, and hidden states where there is a medium
    media int64 [M]       which of these are places of media
    reply float [A, H]    the embeddings of the assistant's turn: three tokens of its role, then the reply but its last
    tts float [3, H]      the embeddings of the tokens that begin and end the text, and of padding
    speaker int           the voice's token
    mrope_positions int64 [3, U + 9], mrope_delta int
    residual_temperature float, residual_top_k int, residual_top_p float, seed int
                          how the further codes of a frame are chosen
"""

TALKER_TAIL = 9
"""Positions of the talker's prompt behind the user's: the role, the speaker and the beginning of the reply."""

ROLE_TOKENS = 3
"""Of the assistant's turn in the thinker's prompt: the turn's beginning, the word, a line break."""

RESIDUAL_CODES = "residual_codes"
"""The rows of a frame's further codes, as the talker's engine captures them."""

EMBEDS = "embeds"
"""The rows of the thinker's embeddings, in its output beside the hidden states."""

PROMPT_IDS = "prompt_ids"
"""The ids of the thinker's prompt in its output, int64 [P]."""

"""Encoders: a job's outputs as the bytes of files. The table ``omni_jobs.pipelines.outputs`` names them.

An encoder is a function ``(tensors, values, format) -> bytes``. ``tensors`` and ``values`` are those of the flow that
the output is made of, and ``format`` is the name of one of the output's formats. Where the output has ``metadata``, a
fourth argument maps names to texts that the encoder writes into the file: ``seed``, and ``job_id`` where the setting
``job_ids_in_pictures`` is true. The same arguments give the same bytes. An encoder raises ModelError, which names the
tensor or value, for what it cannot encode.
"""

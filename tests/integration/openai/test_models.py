"""The pipelines, as the stock client lists models."""

import openai

from tests.integration.openai.stock import Stock


def test_the_pipelines_are_models(stock: Stock) -> None:
    [model] = stock.client.models.list().data
    assert (model.id, model.object, model.created, model.owned_by) == ("echo_media", "model", 0, "omni-jobs")
    assert stock.client.models.retrieve("echo_media") == model


def test_an_unknown_model(stock: Stock) -> None:
    error = stock.error(openai.NotFoundError, lambda: stock.client.models.retrieve("gpt-6-sol"))
    assert (error.code, error.param, error.type) == ("not_found", "model", "not_found_error")
    assert "gpt-6-sol" in error.message

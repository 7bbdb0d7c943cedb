"""The learner's own continuation is transformers' greedy one, with its log-probs."""

import torch

from rocstar.train.learner.learner import Learner
from rocstar.train.learner.scratch import build_model
from rocstar.train.recipe.model_config import ScratchConfig


def test_greedy_is_the_models() -> None:
    model = build_model(ScratchConfig(vocab_size=300, hidden_size=48, num_layers=2), 300, seed=0)
    ids = [5, 9, 31, 7]
    with torch.no_grad():
        expected_ids, expected = list(ids), []
        for _ in range(3):
            logits_V = model(torch.tensor([expected_ids])).logits[0, -1].float()
            best = torch.log_softmax(logits_V, -1).max(-1)
            expected_ids.append(int(best.indices))
            expected.append(float(best.values))
    found, logprobs = Learner(model).greedy(ids, 3)
    assert found == expected_ids[len(ids) :]
    assert torch.allclose(torch.tensor(logprobs), torch.tensor(expected), atol=1e-5)

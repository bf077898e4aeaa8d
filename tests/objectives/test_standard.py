import torch
from torch import nn

from excite.objectives import OBJECTIVES, standard_loss


def test_standard_loss_is_the_mean_negative_log_probability() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 3), torch.randn(7, 5), torch.randint(0, 3, (7,))
    probabilities = torch.softmax(model(x), dim=1)
    expected = -torch.log(torch.stack([probabilities[i, y[i]] for i in range(7)])).mean()
    torch.testing.assert_close(standard_loss(model, x, y), expected)
    torch.testing.assert_close(OBJECTIVES["standard"]()(model, x, y), expected)

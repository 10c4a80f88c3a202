"""Text: batches are dictionaries of token ids, handed to the model by name."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from truth import Truth


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


torch.manual_seed(0)
truth = Truth()
texts = [{"input_ids": torch.randint(0, 50, (6,))} for _ in range(80)]
for text in texts:
    text["labels"] = text["input_ids"].roll(-1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(texts, batch_size=4):
    loss = model(**batch)["loss"]
    truth.forward(len(batch["input_ids"]))
    optimizer.zero_grad()
    loss.backward()
    truth.backward(loss)
    optimizer.step()
    truth.step()
truth.tell(tokens=24)

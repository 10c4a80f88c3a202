"""Lightning: its Trainer owns the loop, and runs forward and backward inside `optimizer.step`."""

import logging
import warnings

import lightning
import torch
import torch.nn.functional as F
from nets import labelled, mlp
from torch import Tensor
from torch.utils.data import DataLoader
from truth import Truth

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
truth = Truth()


class Task(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        inputs, labels = batch
        loss = F.cross_entropy(self.net(inputs), labels)
        truth.forward(len(inputs))
        truth.backward(loss)
        return loss

    def validation_step(self, batch: list[Tensor], _index: int) -> None:
        self.net(batch[0])
        truth.evaluation()

    def on_train_batch_end(self, *_: object) -> None:
        truth.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(0, verbose=False)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Task(), DataLoader(labelled(40), batch_size=4), DataLoader(labelled(8), batch_size=4))
truth.tell()

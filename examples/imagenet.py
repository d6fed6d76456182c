"""Train a network of torchvision on pictures of ImageNet's size, on one or many GPUs.

    zeus-stream run -- python examples/imagenet.py --arch resnet50
    zeus-stream run -- torchrun --nproc-per-node 4 examples/imagenet.py --arch resnet50

The pictures are random, so that nothing has to be downloaded. Put your data set in their place.
"""

import argparse
import os

import torch
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import zeus_stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64, help="of one GPU")
    parser.add_argument("--size", type=int, default=224, help="pixels of an edge")
    options = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    if ranks > 1:
        torch.distributed.init_process_group("nccl" if cuda else "gloo")

    pictures = torch.randn(options.samples, 3, options.size, options.size)
    data = TensorDataset(pictures, torch.randint(1000, (options.samples,)))
    sampler = DistributedSampler(data) if ranks > 1 else None
    loader = DataLoader(
        data, options.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True, pin_memory=cuda
    )
    model = torchvision.models.get_model(options.arch, weights=None).to(device)
    if ranks > 1:
        model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    for epoch in zeus_stream.epochs(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in zeus_stream.steps(loader):
            output = model(images.to(device, non_blocking=True))
            loss = torch.nn.functional.cross_entropy(output, labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        zeus_stream.metric("loss", loss.item())
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

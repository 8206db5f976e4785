"""What scorers of GPU devices see: the names of the features of a pod on a node and device, and of the pod.

All features are of about unit size and none depends on the number of nodes. "After" means after the pod is placed.

===============  =================================================================================================
fragment_gain    fall of the fragment amount F(n), in GPUs
fgd              the same through FGD's logistic, 0 ... 1
cpu_left         CPU after / 128 cores
gpu_left         GPU capacity after / 8 GPUs
cpu_fraction     CPU after / the node's CPU
gpu_fraction     GPU capacity after / the node's GPUs (0 without GPUs)
imbalance        |cpu_fraction - gpu_fraction|
dot              (CPU left x CPU asked) / 128^2 + (GPUs left x GPUs asked) / 64, before
whole_left       fully free devices after / 8
whole_opened     fully free devices that the pod takes or breaks / 8
device_left      a share's device: what it has left after / 1 GPU
device_full      1 where a share's device is full after
unused           1 where the node had no GPU pod
exhausted        1 where a node with GPUs has none left after
usable           GPU capacity after that typical pods can use / 8 GPUs
stranded_cpu     cpu_left where the GPUs are exhausted
cpu_per_gpu      cores per GPU left after / 16, at most 2
cpu_class        share of the typical pods' CPU demands that still fit
same_kind        1 where a pod of the same kind (share, G whole devices) is on the node
other_kind       1 where a pod of another kind is
model_demand     share of the typical GPU demand that names this node's model
model_access     share of the typical GPU demand that this node's model may serve
gpu_count        the node's devices / 8
waste            free capacity of shared devices after, which no whole request can use / 8 GPUs
placeable        share of the typical GPU demand that comes from pods of which one still fits after
placeable_lost   fall of it
intact_lost      fall of (devices / 8) x (CPU left / 128 cores) of a node whose devices are all free, else 0
room_lost        fall of (fully free devices / 8)^2 x (CPU left / 128 cores): room for pods with many devices
rest_lost        fall of what a share's device is worth to the typical shares (`Scarcity.rests`), in devices
model_load       demand on each device of this model (`Scarcity.models`), less 1
===============  =================================================================================================

===============  =================================================================================================
no_gpu ...       of a pod: 1 for its group of `GROUPS`, and named_models 1 where it names the models that may serve it
cpu              CPU asked / 32 cores
gpu              GPU asked / 8 GPUs
share_milli      a share's part of a device, 0 for other pods
===============  =================================================================================================
"""

FEATURES = (
    "fragment_gain", "fgd", "cpu_left", "gpu_left", "cpu_fraction", "gpu_fraction", "imbalance", "dot", "whole_left",
    "whole_opened", "device_left", "device_full", "unused", "exhausted", "usable", "stranded_cpu", "cpu_per_gpu",
    "cpu_class", "same_kind", "other_kind", "model_demand", "model_access", "gpu_count", "waste", "placeable",
    "placeable_lost", "intact_lost", "room_lost", "rest_lost", "model_load",
)  # fmt: skip
# Pods are told apart by these groups; a linear scorer has weights for each, and more where models are named.
GROUPS = ("no_gpu", "share", "one_gpu", "several_gpus", "named_models")
POD_INPUTS = (*GROUPS, "cpu", "gpu", "share_milli")  # what a network sees besides phi

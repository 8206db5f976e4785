package aaml

import v1 "k8s.io/api/core/v1"

// grouped says whether a pod is scheduled with others.
func grouped(spec *v1.PodSpec) bool { return spec.WorkloadRef != nil }

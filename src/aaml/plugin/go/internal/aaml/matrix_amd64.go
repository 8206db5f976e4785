package aaml

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var hasKernel = cpu.X86.HasAVX2 && cpu.X86.HasFMA

// multiplyAVX2 writes max(start + a weight, floor) into 16 columns of c, for rows that are a multiple of 4.
//
//go:noescape
func multiplyAVX2(c *float32, ldc int, a *float32, lda int, weight, start *float32, startStep, in, rows int, floor float32)

// multiply computes 16 columns of `apply`; steps are in elements.
func multiply(c *float32, ldc int, a *float32, lda int, weight, start *float32, startStep, in, rows int, floor float32) {
	if hasKernel {
		multiplyAVX2(c, ldc, a, lda, weight, start, startStep, in, rows, floor)
		return
	}
	multiplyPlain(
		unsafe.Slice(c, (rows-1)*ldc+blockColumns), unsafe.Slice(a, (rows-1)*lda+in), unsafe.Slice(weight, in*blockColumns),
		unsafe.Slice(start, (rows-1)*startStep+blockColumns), ldc, lda, startStep, in, rows, floor,
	)
}

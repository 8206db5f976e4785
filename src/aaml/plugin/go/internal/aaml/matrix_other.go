//go:build !amd64

package aaml

import "unsafe"

// multiply computes 16 columns of `apply`; steps are in elements.
func multiply(c *float32, ldc int, a *float32, lda int, weight, start *float32, startStep, in, rows int, floor float32) {
	multiplyPlain(
		unsafe.Slice(c, (rows-1)*ldc+blockColumns), unsafe.Slice(a, (rows-1)*lda+in), unsafe.Slice(weight, in*blockColumns),
		unsafe.Slice(start, (rows-1)*startStep+blockColumns), ldc, lda, startStep, in, rows, floor,
	)
}

package aaml

const (
	blockColumns = 16 // that are computed at once
	blockRows    = 4
)

// padded returns how many rows a buffer needs for n: products are computed for blocks of them.
func padded(n int) int { return (n + blockRows - 1) / blockRows * blockRows }

// dense is a layer's weights [in, out], packed in blocks of 16 columns: block b holds its columns of row 0, of row 1, ...
// Columns beyond the last are zeros. Outputs are rows of width, which is out rounded up to whole blocks.
type dense struct {
	in, out, width int
	weight         []float32 // [width / 16, in, 16]
	bias           []float32 // [width], zeros where the layer has none
}

// newDense packs a layer of torch: weight [out, in] and bias [out] or nil.
func newDense(weight [][]float32, bias []float32) dense {
	out, in := len(weight), len(weight[0])
	d := dense{in: in, out: out, width: (out + blockColumns - 1) / blockColumns * blockColumns}
	d.weight, d.bias = make([]float32, in*d.width), make([]float32, d.width)
	copy(d.bias, bias)
	for o, row := range weight {
		for i, value := range row {
			d.weight[(o/blockColumns*in+i)*blockColumns+o%blockColumns] = value
		}
	}
	return d
}

// half returns half of the weights of the first inputs, without the bias.
func (d *dense) half(in int) dense {
	h := dense{in: in, out: d.out, width: d.width, weight: make([]float32, 0, in*d.width), bias: make([]float32, d.width)}
	for b := 0; b < d.width; b += blockColumns {
		for _, value := range d.weight[b*d.in : b*d.in+in*blockColumns] {
			h.weight = append(h.weight, value/2)
		}
	}
	return h
}

// apply writes start + a weight into c [n, width], from a [n, lda], whose first `in` columns count. start is a row of
// `width`, or rows of it (startStep is 0 or their length). floor is the least an output may be: 0 rectifies, -Inf does not.
// Buffers have padded(n) rows.
func (d *dense) apply(c, a []float32, lda, n int, start []float32, startStep int, floor float32) {
	if n == 0 {
		return
	}
	rows := padded(n)
	_, _, _ = c[rows*d.width-1], a[(rows-1)*lda+d.in-1], start[(rows-1)*startStep+d.width-1]
	for b := 0; b < d.width; b += blockColumns {
		multiply(&c[b], d.width, &a[0], lda, &d.weight[b*d.in], &start[b], startStep, d.in, rows, floor)
	}
}

// row returns bias + a weight for one row a [in]: [width].
func (d *dense) row(a []float32) []float32 {
	out := append([]float32(nil), d.bias...)
	for i, value := range a[:d.in] {
		d.add(out, i, value)
	}
	return out
}

// add adds row i of the weight, times factor, to out [width].
func (d *dense) add(out []float32, i int, factor float32) {
	for b := 0; b < d.width; b += blockColumns {
		weight := d.weight[(b/blockColumns*d.in+i)*blockColumns:][:blockColumns]
		for j, value := range weight {
			out[b+j] += factor * value
		}
	}
}

// multiplyPlain is multiply in Go, for machines without a kernel of their own.
func multiplyPlain(c, a, weight, start []float32, ldc, lda, startStep, in, rows int, floor float32) {
	for r := range rows {
		var sum [blockColumns]float32
		copy(sum[:], start[r*startStep:])
		for i, value := range a[r*lda : r*lda+in] {
			w := weight[i*blockColumns : i*blockColumns+blockColumns : i*blockColumns+blockColumns]
			for j := range sum {
				sum[j] += value * w[j]
			}
		}
		out := c[r*ldc : r*ldc+blockColumns]
		for j, value := range sum {
			if value < floor {
				value = floor
			}
			out[j] = value
		}
	}
}

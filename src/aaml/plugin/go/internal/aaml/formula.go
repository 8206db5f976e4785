package aaml

import (
	"fmt"
	"math"
	"slices"
)

// formula is an expression of features, as the program that aaml.policies.formulas.program makes of it: registers hold the
// features, then the constants, then what each instruction gives. The last one is the score.
type formula struct {
	reads     []column
	constants []float64
	code      []instruction
	registers [][]float64
	features
}

// column is where a feature stands: in the nodes' (0), the pairs' (1) or the pod's (2).
type column struct{ of, at int }

// instruction is an operator and the registers of its operands.
type instruction struct {
	Operator string `json:"operator"`
	Operands []int  `json:"operands"`
	apply    func(a, b, c float64) float64
}

var operators = map[string]struct {
	operands int
	apply    func(a, b, c float64) float64
}{
	"+": {2, func(a, b, _ float64) float64 { return a + b }},
	"-": {2, func(a, b, _ float64) float64 { return a - b }},
	"*": {2, func(a, b, _ float64) float64 { return within(a * b) }},
	"/": {2, func(a, b, _ float64) float64 {
		if b < 0 {
			return within(a / min(b, -leastDivisor))
		}
		return within(a / max(b, leastDivisor))
	}},
	"min":    {2, func(a, b, _ float64) float64 { return min(a, b) }},
	"max":    {2, func(a, b, _ float64) float64 { return max(a, b) }},
	"neg":    {1, func(a, _, _ float64) float64 { return -a }},
	"abs":    {1, func(a, _, _ float64) float64 { return math.Abs(a) }},
	"square": {1, func(a, _, _ float64) float64 { return min(a*a, largest) }},
	"sqrt":   {1, func(a, _, _ float64) float64 { return math.Sqrt(math.Abs(a)) }},
	"log":    {1, func(a, _, _ float64) float64 { return math.Log(max(math.Abs(a), leastLog)) }},
	"exp":    {1, func(a, _, _ float64) float64 { return math.Exp(min(a, mostExponent)) }},
	"<":      {2, func(a, b, _ float64) float64 { return truth(a < b) }},
	"<=":     {2, func(a, b, _ float64) float64 { return truth(a <= b) }},
	"and":    {2, func(a, b, _ float64) float64 { return min(a, b) }},
	"or":     {2, func(a, b, _ float64) float64 { return max(a, b) }},
	"not":    {1, func(a, _, _ float64) float64 { return 1 - a }},
	"if": {3, func(a, b, c float64) float64 {
		if a > 0 {
			return b
		}
		return c
	}},
}

func within(value float64) float64 { return min(max(value, -largest), largest) }

func truth(is bool) float64 { return float64(one(is)) }

func newFormula(reads []string, constants []float64, code []instruction) (*formula, error) {
	f := &formula{constants: constants, code: code}
	for _, name := range reads {
		found := column{-1, -1}
		for of, names := range [][]string{nodeFeatures, pairFeatures, podFeatures} {
			prefix := [3]string{"node.", "pair.", "pod."}[of]
			if at := slices.IndexFunc(names, func(each string) bool { return prefix+each == name }); at >= 0 {
				found = column{of, at}
			}
		}
		if found.of < 0 {
			return nil, fmt.Errorf("a formula that reads %q, which this plugin does not compute", name)
		}
		f.reads = append(f.reads, found)
	}
	if err := ready(f.code, len(reads)+len(constants)); err != nil {
		return nil, err
	}
	f.registers = make([][]float64, len(reads)+len(constants)+len(code))
	return f, nil
}

// ready looks up the operators of a formula's code, which begins with so many registers known.
func ready(code []instruction, known int) error {
	if known == 0 {
		return fmt.Errorf("a formula of nothing")
	}
	for i := range code {
		each := &code[i]
		operator, ok := operators[each.Operator]
		if !ok || len(each.Operands) != operator.operands {
			return fmt.Errorf("a formula with %q of %d operands", each.Operator, len(each.Operands))
		}
		for _, operand := range each.Operands {
			if operand < 0 || operand >= known {
				return fmt.Errorf("a formula with an operand that is not computed yet")
			}
		}
		each.apply = operator.apply
		each.Operands = append(slices.Clone(each.Operands), 0, 0)[:3]
		known++
	}
	return nil
}

// scores writes the score of each choice of a view.
func (f *formula) scores(v *view, scores []float64) {
	f.fill(v)
	n := len(v.kindOf)
	for r := range f.registers {
		f.registers[r] = sized(f.registers[r], n)
	}
	for r, each := range f.reads {
		for i, kind := range v.kindOf {
			switch each.of {
			case 0:
				f.registers[r][i] = float64(f.nodes[int(kind)*nodeWidth+each.at])
			case 1:
				f.registers[r][i] = float64(f.pairs[i*pairWidth+each.at])
			default:
				f.registers[r][i] = float64(f.pod[each.at])
			}
		}
	}
	for k, value := range f.constants {
		for i := range n {
			f.registers[len(f.reads)+k][i] = value
		}
	}
	for k, each := range f.code {
		a, b, c := f.registers[each.Operands[0]], f.registers[each.Operands[1]], f.registers[each.Operands[2]]
		out := f.registers[len(f.reads)+len(f.constants)+k]
		for i := range n {
			out[i] = each.apply(a[i], b[i], c[i])
		}
	}
	copy(scores, f.registers[len(f.registers)-1])
}

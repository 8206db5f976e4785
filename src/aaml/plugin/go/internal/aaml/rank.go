package aaml

import "slices"

const best = 100 // fwk.MaxNodeScore

// ranks turns scores into what kube-scheduler adds up: 100 for the best row, 99 for the next and so on, 0 from the 101st on.
// Of rows with the same score the first comes first, as in Python, whose rows are in the order in which it saw the nodes;
// kube-scheduler's are in the order of its snapshot, by zone in turn.
type ranks struct {
	order []int32 // choices, the best first
	rank  []int32 // choice -> its place in order, -1 where it is beyond the hundredth row
	rows  []placed
	taken [best]int // rows of a place; no more than a hundred are looked at
}

type placed struct{ place, row int32 }

// grade returns the grades of a view's rows by the names of their nodes, without those that are 0.
func (r *ranks) grade(v *view, scores []float64, names []string) map[string]uint8 {
	r.order = r.order[:0]
	worst := 0.0
	for choice, score := range scores {
		if len(r.order) == best {
			if score <= worst {
				continue
			}
			r.order = r.order[:best-1]
		}
		at, _ := slices.BinarySearchFunc(r.order, score, func(other int32, score float64) int {
			if scores[other] >= score {
				return -1
			}
			return 1
		})
		r.order = slices.Insert(r.order, at, int32(choice))
		worst = scores[r.order[len(r.order)-1]]
	}
	r.rank = sized(r.rank, len(scores))
	for i := range r.rank {
		r.rank[i] = -1
	}
	enough, place := 0.0, int32(-1)
	for i, choice := range r.order {
		if i == 0 || scores[choice] != scores[r.order[i-1]] {
			if enough >= best {
				break
			}
			place = int32(i)
		}
		r.rank[choice] = place
		enough += v.chosen[choice]
	}
	r.rows, r.taken = r.rows[:0], [best]int{}
	for row, choice := range v.rowChoice {
		if choice >= 0 && r.rank[choice] >= 0 && r.taken[r.rank[choice]] < best {
			r.taken[r.rank[choice]]++
			r.rows = append(r.rows, placed{r.rank[choice], int32(row)})
		}
	}
	slices.SortFunc(r.rows, func(a, b placed) int {
		if a.place != b.place {
			return int(a.place - b.place)
		}
		return int(a.row - b.row)
	})
	graded := r.rows[:min(len(r.rows), best)]
	grades := make(map[string]uint8, len(graded))
	for i, each := range graded {
		grades[names[each.row]] = uint8(best - i)
	}
	return grades
}

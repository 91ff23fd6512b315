package calc

import "math/big"

// The functions of "bc -l", computed with guard digits and truncated to scale.

func bigFloat(a number, precision uint) *big.Float {
	value := new(big.Float).SetPrec(precision).SetInt(a.digits)
	return value.Quo(value, new(big.Float).SetPrec(precision).SetInt(pow10(a.scale)))
}

func fromFloat(value *big.Float, scale int) number {
	scaled := new(big.Float).SetPrec(value.Prec()).Mul(value, new(big.Float).SetPrec(value.Prec()).SetInt(pow10(scale)))
	digits, _ := scaled.Int(nil)
	return number{digits, scale}
}

func precisionFor(scale int) uint { return uint(scale)*4 + 256 }

func series(x *big.Float, term func(n int64, previous *big.Float) *big.Float, first *big.Float, scale int) *big.Float {
	sum := new(big.Float).Copy(first)
	limit := new(big.Float).SetPrec(64).SetMantExp(big.NewFloat(1), -(scale*4 + 128))
	current := new(big.Float).Copy(first)
	for n := int64(1); n < 20000; n++ {
		current = term(n, current)
		if new(big.Float).Abs(current).Cmp(limit) < 0 {
			break
		}
		sum.Add(sum, current)
	}
	return sum
}

func exponential(a number, scale int) number {
	precision := precisionFor(scale)
	x := bigFloat(a, precision)
	halvings := 0
	for one := big.NewFloat(0.5); new(big.Float).Abs(x).Cmp(one) > 0 && halvings < 4000; halvings++ {
		x.Quo(x, big.NewFloat(2))
	}
	result := series(x, func(n int64, previous *big.Float) *big.Float {
		next := new(big.Float).SetPrec(precision).Mul(previous, x)
		return next.Quo(next, new(big.Float).SetInt64(n))
	}, new(big.Float).SetPrec(precision).SetInt64(1), scale)
	for ; halvings > 0; halvings-- {
		result.Mul(result, result)
	}
	return fromFloat(result, scale)
}

func logarithm(a number, scale int) number {
	if a.digits.Sign() <= 0 {
		return number{new(big.Int).Sub(big.NewInt(1), pow10(scale+scale)), scale}
	}
	precision := precisionFor(scale)
	x := bigFloat(a, precision)
	doublings := int64(1)
	for x.Cmp(big.NewFloat(1.1)) > 0 || x.Cmp(big.NewFloat(0.9)) < 0 {
		x.Sqrt(x)
		doublings *= 2
	}
	one := new(big.Float).SetPrec(precision).SetInt64(1)
	ratio := new(big.Float).SetPrec(precision).Quo(new(big.Float).SetPrec(precision).Sub(x, one), new(big.Float).SetPrec(precision).Add(x, one))
	square := new(big.Float).SetPrec(precision).Mul(ratio, ratio)
	sum := new(big.Float).SetPrec(precision)
	power := new(big.Float).Copy(ratio)
	for n := int64(1); n < 4000; n += 2 {
		sum.Add(sum, new(big.Float).SetPrec(precision).Quo(power, new(big.Float).SetInt64(n)))
		power.Mul(power, square)
	}
	return fromFloat(sum.Mul(sum, new(big.Float).SetInt64(2*doublings)), scale)
}

func sine(a number, scale int) number {
	precision := precisionFor(scale)
	x := bigFloat(a, precision)
	square := new(big.Float).SetPrec(precision).Mul(x, x)
	return fromFloat(series(x, func(n int64, previous *big.Float) *big.Float {
		next := new(big.Float).SetPrec(precision).Mul(previous, square)
		next.Quo(next, new(big.Float).SetInt64(2*n*(2*n+1)))
		return next.Neg(next)
	}, x, scale), scale)
}

func cosine(a number, scale int) number {
	precision := precisionFor(scale)
	x := bigFloat(a, precision)
	square := new(big.Float).SetPrec(precision).Mul(x, x)
	return fromFloat(series(x, func(n int64, previous *big.Float) *big.Float {
		next := new(big.Float).SetPrec(precision).Mul(previous, square)
		next.Quo(next, new(big.Float).SetInt64((2*n-1)*2*n))
		return next.Neg(next)
	}, new(big.Float).SetPrec(precision).SetInt64(1), scale), scale)
}

// arctangent halves the argument until the series converges fast.
func arctangent(a number, scale int) number {
	precision := precisionFor(scale)
	x := bigFloat(a, precision)
	one := new(big.Float).SetPrec(precision).SetInt64(1)
	factor := int64(1)
	for new(big.Float).Abs(x).Cmp(big.NewFloat(0.1)) > 0 {
		root := new(big.Float).SetPrec(precision).Mul(x, x)
		root.Sqrt(root.Add(root, one))
		x.Quo(x, root.Add(root, one))
		factor *= 2
	}
	square := new(big.Float).SetPrec(precision).Mul(x, x)
	sum := new(big.Float).SetPrec(precision)
	power := new(big.Float).Copy(x)
	for n := int64(1); n < 4000; n += 2 {
		sum.Add(sum, new(big.Float).SetPrec(precision).Quo(power, new(big.Float).SetInt64(n)))
		power.Mul(power, square)
		power.Neg(power)
	}
	return fromFloat(sum.Mul(sum, new(big.Float).SetInt64(factor)), scale)
}

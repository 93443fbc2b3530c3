// Functions of one number. What they compute is precise: the same bits on whatever
// row and in whatever launch (SPEC E8). A NaN stays one.

// exponential is e^x for x <= 0, within 1 ulp, and 0 below -87, where the result would
// soon be subnormal.
//
// x = n ln 2 + r with n an integer and |r| <= ln(2)/2; the sum rounds x/ln 2 to n in the
// low bits of a number near 2^23, from where n becomes an exponent. ln 2 is in two parts
// of which the first has so few bits that n times it is exact. e^r is 1 + r + r^2 P(r)
// with P fitted for the smallest largest error.
// Source of the reduction: W. J. Cody, W. Waite, Software Manual for the Elementary
// Functions, 1980.
float exponential(float x) {
	precise float shifted = x * 1.44269504 + 12582912.0;
	precise float n = shifted - 12582912.0;
	precise float r = (x - n * 0.693359375) - n * -2.12194440e-4;
	precise float p = 0.0013814539415761828;
	p = p * r + 0.00836874544620514;
	p = p * r + 0.04166838899254799;
	p = p * r + 0.1666652113199234;
	p = p * r + 0.4999999403953552;
	precise float y = (p * (r * r) + r) + 1.0;
	precise float scaled = y * uintBitsToFloat((floatBitsToUint(shifted) << 23) + 0x3f800000u);
	return x < -87.0 ? 0.0 : scaled;
}

// gelu is x/2 (1 + erf(x/sqrt 2)) with an absolute error below 4e-7, x itself from 6 on
// and 0 from -6 down.
//
// It is max(x, 0) - h(|x|) with h(a) = a/2 erfc(a/sqrt 2), a bump no higher than 0.17, so
// that large x lose nothing. h falls about as (6 - a)^6 does, hence h(a) = a (6-a)^6 G(a - 2)
// with G a polynomial fitted for the smallest largest error of h on [0, 6]; the factor
// makes it exactly 0 at 6.
float gelu(float x) {
	precise float a = min(abs(x), 6.0);
	precise float left = 6.0 - a;
	precise float square = left * left;
	precise float u = a - 2.0;
	precise float g = -2.232129758805712e-11;
	g = g * u + 1.1795887877585898e-10;
	g = g * u + 3.896251377089044e-10;
	g = g * u - 3.0288145325130245e-09;
	g = g * u - 1.3910003149320005e-09;
	g = g * u + 3.9002706841984036e-08;
	g = g * u - 4.110482265673454e-08;
	g = g * u - 2.8665979812103615e-07;
	g = g * u + 7.411110800603637e-07;
	g = g * u + 6.991635927988682e-07;
	g = g * u - 4.850094683206407e-06;
	g = g * u + 5.554232302529272e-06;
	precise float y = max(x, 0.0) - a * (square * square * square) * g;
	return isnan(x) ? x : y;
}

// hyperbolicTangent has an error below 3 ulp. Small x take an odd polynomial, others
// (1 - e^-2|x|) / (1 + e^-2|x|) with the sign of x.
float hyperbolicTangent(float x) {
	precise float a = abs(x);
	precise float u = x * x;
	precise float p = -0.005704987328499556;
	p = p * u + 0.0206390880048275;
	p = p * u - 0.05373971536755562;
	p = p * u + 0.13331441581249237;
	p = p * u - 0.3333328068256378;
	precise float near = x + x * (u * p);
	precise float e = exponential(-2.0 * a);
	precise float far = (1.0 - e) / (1.0 + e);
	return a < 0.625 ? near : (x < 0.0 ? -far : far);
}

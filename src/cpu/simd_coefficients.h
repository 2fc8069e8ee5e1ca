// Coefficients of the polynomials in simd_math-inl.h, lowest power first, for fp32 and fp64.
// Printed by tools/fit_functions.py; change them there.
#pragma once

namespace gdpa::cpu {

// exp(r) = 1 + r + r^2 P(r), |r| <= log(2) / 2; P is within 6.8e-08
inline constexpr float exponential_32[] = {5.0e-1F, 1.66665734e-1F, 4.16665501e-2F, 8.36377387e-3F, 1.39269266e-3F};

// exp(r) = 1 + r + r^2 P(r), |r| <= log(2) / 2; P is within 1.6e-18
inline constexpr double exponential_64[] = {5.0e-1,
                                            1.6666666666666671e-1,
                                            4.166666666666667e-2,
                                            8.3333333333255447e-3,
                                            1.3888888888883327e-3,
                                            1.9841269876864355e-4,
                                            2.4801587327007187e-5,
                                            2.755725283351691e-6,
                                            2.75572718102198e-7,
                                            2.5106274733573295e-8,
                                            2.0915442297780115e-9};

// 2^r = 1 + r P(r), |r| <= 1/2; P is within 7.9e-09
inline constexpr float power_of_two_32[] = {6.93147188e-1F, 2.40226508e-1F, 5.55035668e-2F,
                                            9.61808218e-3F, 1.33910932e-3F, 1.5453362e-4F};

// 2^r = 1 + r P(r), |r| <= 1/2; P is within 1.7e-19
inline constexpr double power_of_two_64[] = {6.9314718055994531e-1, 2.4022650695910071e-1,  5.5504108664821628e-2,
                                             9.6181291076284795e-3, 1.3333558146406117e-3,  1.5403530393370558e-4,
                                             1.5252733842009232e-5, 1.3215486808929519e-6,  1.0178056855501161e-7,
                                             7.0548971892065078e-9, 4.4558591123302077e-10, 2.5729528125665952e-11};

// log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s^2, from sqrt(1/2) to sqrt(2); P is within 1.2e-09
inline constexpr float logarithm_32[] = {6.66666666e-1F, 4.00001239e-1F, 2.8550587e-1F, 2.3336811e-1F};

// log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s^2, from sqrt(1/2) to sqrt(2); P is within 2.2e-18
inline constexpr double logarithm_64[] = {6.6666666666666666e-1, 4.0000000000000912e-1, 2.8571428570782208e-1,
                                          2.2222222396552981e-1, 1.8181795124476754e-1, 1.5386267672882225e-1,
                                          1.3268026140428739e-1, 1.3094416666525344e-1};

// sin(r) = r + r z P(z), z = r^2, |r| <= pi / 4; P is within 3.0e-11
inline constexpr float sine_32[] = {-1.66666667e-1F, 8.33333179e-3F, -1.98400389e-4F, 2.72437814e-6F};

// sin(r) = r + r z P(z), z = r^2, |r| <= pi / 4; P is within 1.3e-20
inline constexpr double sine_64[] = {-1.6666666666666667e-1, 8.3333333333333313e-3,  -1.9841269841264566e-4,
                                     2.7557319218954762e-6,  -2.5052106100255989e-8, 1.6058510875319195e-10,
                                     -7.5854864852359381e-13};

// cos(r) = 1 - z / 2 + z^2 P(z), z = r^2, |r| <= pi / 4; P is within 2.1e-09
inline constexpr float cosine_32[] = {4.16666645e-2F, -1.38882793e-3F, 2.45428711e-5F};

// cos(r) = 1 - z / 2 + z^2 P(z), z = r^2, |r| <= pi / 4; P is within 7.4e-22
inline constexpr double cosine_64[] = {4.1666666666666667e-2,  -1.3888888888888888e-3, 2.4801587301584369e-5,
                                       -2.7557319221189104e-7, 2.0876755717584404e-9,  -1.1470449354466773e-11,
                                       4.7451988072028758e-14};

// erf(x) = x + x P(x^2), |x| <= 1; P is within 4.1e-08
inline constexpr float erf_near_zero_32[] = {1.28379126e-1F,  -3.76123438e-1F, 1.12803167e-1F,
                                             -2.67150542e-2F, 4.92176203e-3F,  -5.64805987e-4F};

// erf(x) = x + x P(x^2), |x| <= 1; P is within 1.3e-19
inline constexpr double erf_near_zero_64[] = {1.2837916709551257e-1,  -3.7612638903183748e-1, 1.1283791670954879e-1,
                                              -2.6866170645076793e-2, 5.2239776248180145e-3,  -8.5483269808337899e-4,
                                              1.2055331111642711e-4,  -1.4925595266831182e-5, 1.6461000484121368e-6,
                                              -1.6350312701054695e-7, 1.4659775274047436e-8,  -1.1372848856791674e-9,
                                              5.9571761477489114e-11};

// log2(erfc(x)) = P(x - 1), x from 1 to 4; P is within 2.4e-08
inline constexpr float erfc_logarithm_32[] = {-2.66841669F,    -3.80722561F,   -1.21634303F,
                                              -5.99811144e-2F, 1.45392037e-2F, -2.9637298e-3F,
                                              4.62008034e-4F,  -4.7552428e-5F, 2.36191023e-6F};

// log2(erfc(x)) = P(x - 1), x from 1 to 6; P is within 3.0e-17
inline constexpr double erfc_logarithm_64[] = {
    -2.6684166967815996,    -3.8072253458536165,     -1.2163466576855145,    -5.9959990052421743e-2,
    1.4475750261859117e-2,  -2.8535112857633647e-3,  3.4238885747203329e-4,  3.7895131121626692e-5,
    -3.914512641740728e-5,  1.3797749664820577e-5,   -2.885830268664985e-6,  1.1948514065784999e-7,
    2.0811570793077709e-7,  -1.1557745255729858e-7,  4.033485214812644e-8,   -1.0881021424443091e-8,
    2.3923879762315706e-9,  -4.3532360155656791e-10, 6.5555901596762341e-11, -8.0970515227211138e-12,
    8.0675836744573612e-13, -6.3204749232652811e-14, 3.7445841810917151e-15, -1.5749571815251894e-16,
    4.1846561768701312e-18, -5.2724166826675898e-20};

// Their sum is the constant; a product of any but the last with an integer of 13 (fp32) or 20 (fp64)
// bits is exact, also without a fused multiply-add.
inline constexpr float log_2_parts_32[] = {6.93359375e-1F, -2.12194442e-4F};
inline constexpr double log_2_parts_64[] = {6.9314718060195446e-1, -4.2009150726810846e-11};

// Their sum is the constant; a product of any but the last with an integer of 13 (fp32) or 20 (fp64)
// bits is exact, also without a fused multiply-add.
inline constexpr float half_pi_parts_32[] = {1.5703125F, 4.83751297e-4F, 7.54953362e-8F, 2.56334407e-12F};
inline constexpr double half_pi_parts_64[] = {1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21,
                                              8.4784276603688996e-32};

}  // namespace gdpa::cpu

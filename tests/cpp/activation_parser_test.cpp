// The expression language: the meaning of a text, its canonical form, and the errors that mark a fault.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "expression/lower.h"
#include "expression/tree.h"
#include "gdpa/activation.h"
#include "gdpa/error.h"

namespace {

using gdpa::Activation;

double at(const std::string& text, double score) { return Activation(text).value(score); }

std::string message(const std::string& text, const std::map<std::string, double>& parameters = {}) {
  try {
    Activation activation(text, parameters);
  } catch (const gdpa::Error& error) {
    EXPECT_EQ(error.kind(), gdpa::ErrorKind::value);
    return error.what();
  }
  return "no error";
}

TEST(Parser, OperatorsBindAsInMathematics) {
  EXPECT_EQ(at("1 + 2 * s", 3), 7);
  EXPECT_EQ(at("(1 + 2) * s", 3), 9);
  EXPECT_EQ(at("10 - 4 - s", 3), 3);
  EXPECT_EQ(at("24 / 4 / s", 3), 2);
  EXPECT_EQ(at("-s ^ 2", 3), -9);
  EXPECT_EQ(at("(-s) ^ 2", 3), 9);
  EXPECT_EQ(at("2 ^ s ^ 2", 3), 512);
  EXPECT_EQ(at("s ** 2", 3), 9);
  EXPECT_EQ(at("s ^ -1", 4), 0.25);
  EXPECT_EQ(at("2 - -s", 3), 5);
  EXPECT_EQ(at("2 * -s", 3), -6);
  EXPECT_EQ(at("+s", 3), 3);
}

TEST(Parser, ADescriptionHasTheNamesAndReadsOfATextWithoutTheirNumbers) {
  EXPECT_EQ(gdpa::describe("a * s; t[head, b[q_idx + 1]] * pi with a = 2"),
            R"({"functions": 2, "end": 34, "numbers": {"a": 2}, "names": [["a", 0, 1, false], ["s", 4, 5, false], )"
            R"(["t", 7, 8, false], ["head", 9, 13, true], ["b", 15, 16, false], ["q_idx", 17, 22, false]], )"
            R"("reads": [["b", [""]], ["t", ["head", ""]]]})");
  EXPECT_EQ(gdpa::describe("gelu"), R"({"functions": 1, "end": 4, "numbers": {}, "names": [], "reads": []})");
  EXPECT_EQ(gdpa::describe("prefix(n[batch])", true),
            R"({"functions": 1, "end": 16, "numbers": {}, "names": [["n", 7, 8, false], ["batch", 9, 14, true], )"
            R"(["kv_idx", 16, 16, false]], "reads": [["n", ["batch"]]]})");
  EXPECT_THROW(gdpa::describe("kv_idx < 3"), gdpa::Error);
}

TEST(Parser, NumbersAndConstants) {
  EXPECT_EQ(at("s + .5", 1), 1.5);
  EXPECT_EQ(at("s + 2e-3", 0), 2e-3);
  EXPECT_EQ(at("s + 1.", 0), 1);
  EXPECT_EQ(at("s + 1E+2", 0), 100);
  EXPECT_EQ(at("s * pi", 1), M_PI);
  EXPECT_EQ(at("clamp(s, 0, inf)", 7), 7);
}

TEST(Parser, EveryFunctionIsTheStandardLibrarys) {
  const double x = 0.7, negative = -1.3;
  EXPECT_EQ(at("where(s > 0, 1, 2)", x), 1);
  EXPECT_EQ(at("where(s > 0, 1, 2)", negative), 2);
  EXPECT_EQ(at("min(s, 0, -2)", x), -2);
  EXPECT_EQ(at("max(s, 0, -2)", x), x);
  EXPECT_EQ(at("clamp(s, -1, 1)", negative), -1);
  EXPECT_EQ(at("guard(s, -1, 1)", negative), -1);
  EXPECT_EQ(at("abs(s)", negative), 1.3);
  EXPECT_EQ(at("sign(s)", negative), -1);
  EXPECT_EQ(at("sign(s)", 0), 0);
  EXPECT_EQ(at("relu(s)", negative), 0);
  EXPECT_DOUBLE_EQ(at("sqrt(s)", x), std::sqrt(x));
  EXPECT_DOUBLE_EQ(at("rsqrt(s)", x), 1 / std::sqrt(x));
  EXPECT_DOUBLE_EQ(at("exp(s)", x), std::exp(x));
  EXPECT_DOUBLE_EQ(at("exp2(s)", x), std::exp2(x));
  EXPECT_DOUBLE_EQ(at("expm1(s)", x), std::expm1(x));
  EXPECT_DOUBLE_EQ(at("log(s)", x), std::log(x));
  EXPECT_DOUBLE_EQ(at("log1p(s)", x), std::log1p(x));
  EXPECT_DOUBLE_EQ(at("tanh(s)", x), std::tanh(x));
  EXPECT_DOUBLE_EQ(at("sigmoid(s)", x), 1 / (1 + std::exp(-x)));
  EXPECT_DOUBLE_EQ(at("erf(s)", x), std::erf(x));
  EXPECT_DOUBLE_EQ(at("softplus(s)", x), std::log(1 + std::exp(x)));
  EXPECT_DOUBLE_EQ(at("sin(s)", x), std::sin(x));
  EXPECT_DOUBLE_EQ(at("cos(s)", x), std::cos(x));
  EXPECT_DOUBLE_EQ(at("s ^ 2.3", x), std::pow(x, 2.3));
  EXPECT_DOUBLE_EQ(at("s ^ -2.5", x), std::pow(x, -2.5));
  EXPECT_DOUBLE_EQ(at("(-2) ^ 3 * s", x), -8 * x);
}

TEST(Parser, EveryComparisonIsACondition) {
  for (const double s : {-1.0, 0.0, 1.0}) {
    EXPECT_EQ(at("where(s < 0, 1, 2)", s), s < 0 ? 1 : 2);
    EXPECT_EQ(at("where(s <= 0, 1, 2)", s), s <= 0 ? 1 : 2);
    EXPECT_EQ(at("where(s > 0, 1, 2)", s), s > 0 ? 1 : 2);
    EXPECT_EQ(at("where(s >= 0, 1, 2)", s), s >= 0 ? 1 : 2);
    EXPECT_EQ(at("where(s == 0, 1, 2)", s), s == 0 ? 1 : 2);
    EXPECT_EQ(at("where(s != 0, 1, 2)", s), s != 0 ? 1 : 2);
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(at("where(s == s, 1, 2)", nan), 2);
  EXPECT_EQ(at("where(s != s, 1, 2)", nan), 1);
  EXPECT_EQ(at("where(where(s != 0, 1, 2) == 1, 3, 4)", 5), 3);
}

TEST(Parser, MinMaxAndClampKeepNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* text : {"min(s, 0)", "max(0, s)", "clamp(s, -1, 1)", "guard(s, -1, 1)", "relu(s)", "sign(s)"}) {
    EXPECT_TRUE(std::isnan(at(text, nan))) << text;
  }
}

TEST(Parser, NamesAreFunctionsOfAnyArgument) {
  EXPECT_EQ(at("gelu(2 * s) + 1", 0.3), at("gelu", 0.6) + 1);
  EXPECT_EQ(at("fast_silu(silu(s))", 0.3), at("silu", at("silu", 0.3)));
  EXPECT_EQ(Activation(" gelu ").text(), "gelu");
}

TEST(Parser, CanonicalTextHasOneSpacing) {
  EXPECT_EQ(Activation("s*sigmoid( 1.70200 *s )").text(), "s * sigmoid(1.702 * s)");
  EXPECT_EQ(Activation("where(s>=0,s,-.01*s**2)").text(), "where(s >= 0, s, -0.01 * s^2)");
  EXPECT_EQ(Activation("2 ^ -s - -1").text(), "2^-s - -1");
  EXPECT_EQ(Activation("s\n +\t1e3").text(), "s + 1000");
  EXPECT_EQ(Activation("1e20 * s + 123456789").text(), "1e+20 * s + 123456789");
  EXPECT_EQ(Activation("a*tanh(b*s) with b=.5 , a=-2").text(), "a * tanh(b * s) with a = -2, b = 0.5");
  EXPECT_EQ(Activation("a*tanh(b*s) with b=.5", {{"a", -2}}).text(), "a * tanh(b * s) with a = -2, b = 0.5");
}

TEST(Parser, CanonicalTextGivesTheSameFunction) {
  for (const char* text : {"s*sigmoid(1.702*s)", "min(s,1,2)+clamp(s,-1,inf)", "- s ** -2", "a*s+b with a = 1e-7, b=3",
                           "where(s!=0, 1/3*s, -inf)", "gelu", "fast_gelu", "0.1 + 1e300 * s - 123456789012345678"}) {
    const Activation once(text);
    const Activation again(once.text());
    EXPECT_EQ(again.text(), once.text());
    EXPECT_EQ(&again.function(), &once.function()) << text;
  }
}

TEST(Parser, ParametersComeFromTheTextOrBesideIt) {
  EXPECT_DOUBLE_EQ(at("a * tanh(b * s) with a = 2, b = 0.5", 0.8), 2 * std::tanh(0.4));
  const Activation bound("a * tanh(b * s)", {{"a", 2}, {"b", 0.5}});
  EXPECT_DOUBLE_EQ(bound.value(0.8), 2 * std::tanh(0.4));
  EXPECT_EQ(&bound.function(), &Activation("a * tanh(b * s) with a = 2, b = 0.5").function());
}

TEST(Parser, ConditionsCombineWithThePrecedenceOfPython) {
  for (const double s : {-2.0, -0.5, 0.0, 0.5, 1.0, 2.0}) {
    const bool p = s > 0, q = s < 1, r = s != 0.5;
    EXPECT_EQ(at("where((s > 0) & (s < 1), 3, 4)", s), p && q ? 3 : 4);
    EXPECT_EQ(at("where((s > 0) | (s < 1) & (s != 0.5), 3, 4)", s), p || (q && r) ? 3 : 4);
    EXPECT_EQ(at("where(((s > 0) | (s < 1)) & (s != 0.5), 3, 4)", s), (p || q) && r ? 3 : 4);
    EXPECT_EQ(at("where(~(s > 0) & (s != 0.5), 3, 4)", s), !p && r ? 3 : 4);
    EXPECT_EQ(at("where(~((s > 0) & ~(s < 1)) | ~~(s == 0.5), 3, 4)", s), !(p && !q) || !r ? 3 : 4);
    EXPECT_EQ(at("where((s > 0) & (s < 1) & (s != 0.5) & (s < 9), s, -s)", s), p && q && r ? s : -s);
  }
}

TEST(Parser, IntegerQuotientsAndRemaindersFollowTheFloor) {
  EXPECT_EQ(at("7 // 2 + 0 * s", 1), 3);
  EXPECT_EQ(at("s // 2", -7), -4);
  EXPECT_EQ(at("s % 3", -7), 2);
  EXPECT_EQ(at("s % -3", 7), -2);
  EXPECT_EQ(at("2 * s // 3 % 4", 10), 2);
  for (int a = 0; a < 200; ++a) {
    for (int b = 1; b < 30; ++b) EXPECT_EQ(at("s // b with b = " + std::to_string(b), a), a / b);
  }
}

TEST(Parser, ALongConditionNeedsNoDeepStack) {
  std::string text = "where((s > 0)";
  for (int i = 1; i < 1000; ++i) text += " & (s > " + std::to_string(-i) + ")";
  EXPECT_EQ(at(text + ", 5, 6)", 1), 5);
  EXPECT_EQ(at(text + ", 5, 6)", -1), 6);
}

TEST(ParserErrors, OperandsOfConditionsAreMarked) {
  EXPECT_EQ(message("where(s > 0 & s < 1, 3, 4)"),
            "activation: expected a condition as an operand of &, but a number came\n"
            "    where(s > 0 & s < 1, 3, 4)\n"
            "              ^\n"
            "comparisons need parentheses: (q_idx < 3) & (kv_idx < 3)");
  EXPECT_EQ(message("where((s > 0) | 1, 3, 4)"),
            "activation: expected a condition as an operand of |, but a number came\n"
            "    where((s > 0) | 1, 3, 4)\n"
            "                    ^\n"
            "comparisons need parentheses: (q_idx < 3) & (kv_idx < 3)");
  EXPECT_EQ(message("where(~s, 3, 4)"),
            "activation: expected a condition, but a number came\n"
            "    where(~s, 3, 4)\n"
            "           ^\n"
            "compare it: where(s > 0, a, b)");
  EXPECT_NE(message("where(-(s > 0), 3, 4)").find("expected a number, but a comparison came"), std::string::npos);
  EXPECT_NE(message("where(-~(s > 0), 3, 4)").find("expected a condition after ~, and a number after + and -"),
            std::string::npos);
  EXPECT_NE(message("(s > 0) == (s < 1)").find("expected a number, but a comparison came"), std::string::npos);
  EXPECT_NE(message("(s > 0) & (s < 1)").find("expected a number, but a comparison came"), std::string::npos);
}

TEST(ParserErrors, ShowTheTextWithACaret) {
  EXPECT_EQ(message("s * (1 + s"),
            "activation: expected \")\", but the text ends\n"
            "    s * (1 + s\n"
            "              ^");
  EXPECT_EQ(message("s +* 2"),
            "activation: expected a number, s, a name or \"(\", but \"*\" came\n"
            "    s +* 2\n"
            "       ^");
  EXPECT_EQ(message("s s"),
            "activation: expected an operator or the end, but \"s\" came\n"
            "    s s\n"
            "      ^");
  EXPECT_EQ(message("clamp(s, 1)"),
            "activation: clamp takes 3 arguments, but 2 came\n"
            "    clamp(s, 1)\n"
            "    ^");
  EXPECT_EQ(message("2s"),
            "activation: expected an operator after the number 2\n"
            "    2s\n"
            "     ^\n"
            "write a product with *: 2 * s");
  EXPECT_EQ(message("s * (s > 0)"),
            "activation: expected a number, but a comparison came\n"
            "    s * (s > 0)\n"
            "         ^\n"
            "a comparison is a condition: use it as the first argument of where(condition, a, b)");
  EXPECT_EQ(message("where(s, 1, 2)"),
            "activation: expected a condition, but a number came\n"
            "    where(s, 1, 2)\n"
            "          ^\n"
            "compare it: where(s > 0, a, b)");
  EXPECT_EQ(message("gelu + 1"),
            "activation: gelu is a function\n"
            "    gelu + 1\n"
            "    ^\n"
            "write gelu(s)");
  EXPECT_EQ(message(""),
            "activation: expected a name (gelu) or an expression in s (s * sigmoid(1.702 * s)), but the text is empty");
}

TEST(ParserErrors, TheCaretCountsCharactersAndFindsItsPlaceInALongText) {
  EXPECT_EQ(message("s * µ"),
            "activation: \"µ\" is no part of an expression\n"
            "    s * µ\n"
            "        ^\n"
            "expressions hold numbers, s, names, + - * / // % ^, comparisons, & | ~, parentheses, brackets and commas");
  std::string text = "s";
  for (int i = 0; i < 100; ++i) text += " + s";
  const std::string shown = message(text + " +");
  EXPECT_EQ(shown,
            "activation: expected a number, s, a name or \"(\", but the text ends\n"
            "    ... + s + s + s + s + s + s + s + s + s + s + s + s +\n"
            "                                                         ^");
}

TEST(ParserErrors, AnUnknownFunctionListsTheNearestAndAll) {
  const std::string shown = message("s * gelo(s)");
  EXPECT_NE(shown.find("there is no function \"gelo\"\n    s * gelo(s)\n        ^\ndid you mean \"gelu\"?"),
            std::string::npos)
      << shown;
  for (const auto& row : gdpa::named_activations()) EXPECT_NE(shown.find(row.name), std::string::npos) << row.name;
  EXPECT_EQ(message("qqqqqqqq(s)").find("did you mean"), std::string::npos);
}

TEST(ParserErrors, AMisspeltFunctionWithoutAnArgumentIsNotTakenForAParameterAlone) {
  EXPECT_EQ(message("gelo"),
            "activation: gelo is neither a function nor a parameter with a number\n"
            "    gelo\n"
            "    ^\n"
            "did you mean \"gelu\"? give it: ... with gelo = 1; or write s for the score");
  EXPECT_EQ(message("SiLU"),
            "activation: there is no function \"SiLU\"\n"
            "    SiLU\n"
            "    ^\n"
            "write silu, which is the same function");
  EXPECT_NE(message("Swish(s)").find("did you mean \"silu\"?"), std::string::npos);
  EXPECT_NE(message("softmax(s)").find("it divides by a sum over the keys"), std::string::npos);
  EXPECT_NE(message("s if s > 0 else 0").find("write where(condition, a, b) for a if condition else b"),
            std::string::npos);
  EXPECT_NE(message("s * sigmod").find("did you mean \"sigmoid\"?"), std::string::npos);
  EXPECT_NE(message("gelu_tahn").find("did you mean \"gelu_tanh\"?"), std::string::npos);
  for (const std::string parameter : {"a", "tau", "alpha", "beta", "slope", "bias"}) {
    EXPECT_EQ(message(parameter + " * s").find("did you mean"), std::string::npos) << parameter;
  }
}

TEST(ParserErrors, EachFaultOfAParameterIsNamed) {
  EXPECT_EQ(message("a * tanh(s)"),
            "activation: the parameter a has no number\n"
            "    a * tanh(s)\n"
            "    ^\n"
            "give it: ... with a = 1; or write s for the score");
  EXPECT_NE(message("e^s").find("write exp(x) for e^x"), std::string::npos);
  EXPECT_EQ(message("a * s with b = 1"),
            "activation: the expression has no parameter \"b\"\n"
            "    a * s with b = 1\n"
            "               ^\n"
            "its parameters: a");
  EXPECT_EQ(message("s", {{"a", 1}}), "activation: the expression \"s\" has no parameter \"a\"; it has none");
  EXPECT_NE(message("a * s with a = 1, a = 2").find("the parameter a is given twice"), std::string::npos);
  EXPECT_NE(message("a * s with a = 1", {{"a", 1}}).find("the parameter a is given twice"), std::string::npos);
  EXPECT_EQ(message("s + a", {{"a", std::numeric_limits<double>::quiet_NaN()}}),
            "activation: the parameter a is nan\n"
            "    s + a\n"
            "        ^\n"
            "expected a finite number");
  EXPECT_NE(message("s + a", {{"a", std::numeric_limits<double>::infinity()}}).find("the parameter a is inf"),
            std::string::npos);
  EXPECT_NE(message("a * s with a = b").find("expected a number, but \"b\" came"), std::string::npos);
  EXPECT_NE(message("a * s with").find("expected the name of a parameter, but the text ends"), std::string::npos);
}

TEST(ParserErrors, WhatIsTooLargeIsRefusedBeforeAnythingOverflows) {
  const std::string deep(100000, '(');
  EXPECT_NE(message(deep).find("at most 65536 characters"), std::string::npos);
  EXPECT_NE(message(deep.substr(0, 60000) + "s").find("nested more than 200 deep"), std::string::npos);
  std::string powers = "s";
  for (int i = 0; i < 20000; ++i) powers += "^s";
  EXPECT_NE(message(powers).find("nested more than 200 deep"), std::string::npos);
  std::string calls;
  for (int i = 0; i < 10000; ++i) calls += "gelu(";
  EXPECT_NE(message(calls + "s").find("nested more than 200 deep"), std::string::npos);
  EXPECT_EQ(Activation(std::string(30000, '-') + "s").value(2), 2);
  std::string sum = "s";
  for (int i = 0; i < 1500; ++i) sum += " + sin(" + std::to_string(i) + " * s)";
  EXPECT_NE(message(sum).find("expected at most 4096 operations"), std::string::npos);
}

TEST(ParserErrors, AProgramHasTheMostOperationsAndNotOneMore) {
  gdpa::activation::Tree tree;
  gdpa::activation::NodeId node = tree.score();
  for (std::size_t steps = 1; steps < gdpa::activation::most_steps; ++steps) {
    node = tree.make(gdpa::activation::Operation::sin, node);
  }
  EXPECT_EQ(gdpa::activation::lower(tree, {node}, "").steps.size(), gdpa::activation::most_steps);
  node = tree.make(gdpa::activation::Operation::sin, node);
  EXPECT_THROW(gdpa::activation::lower(tree, {node}, ""), gdpa::Error);
}

TEST(ParserErrors, AnyTextIsReadOrRefused) {
  const std::vector<std::string> parts = {"s",    "(",      ")",     "+",      "-",     "*",      "/",    "^",
                                          "**",   ",",      "1",     ".5",     "1e308", "0",      "inf",  "pi",
                                          "with", "a",      "=",     "<",      "!=",    "where(", "max(", "gelu(",
                                          "gelu", "clamp(", "sqrt(", "log(s)", "s^2",   "relu("};
  std::mt19937 random(3);
  int read = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (int length = 1 + static_cast<int>(random() % 12); length > 0; --length) {
      text += parts[random() % parts.size()] + " ";
    }
    try {
      const Activation activation(text);
      activation.derivative(0.5);
      EXPECT_EQ(Activation(activation.text()).text(), activation.text());
      ++read;
    } catch (const gdpa::Error&) {
    }
  }
  EXPECT_GT(read, 500);
}

TEST(ParserErrors, AConstantThatIsNotANumberIsRefused) {
  EXPECT_NE(message("s + sqrt(-1)").find("a constant that is not a number"), std::string::npos);
  EXPECT_NE(message("s + (inf - inf)").find("a constant that is not a number"), std::string::npos);
}

}  // namespace

// Many runs: the front page of a lab.
class Runs {
  hear() {}
}
